/* Reads the memory of storages: page by page, or whole.
 *
 * Each storage is an address and a size. All of a checkpoint's storages are read in one call, so that many small ones
 * cost memory accesses and not calls.
 */
#include <stddef.h>
#include <stdint.h>

enum { PAGE = 4096 };

/* One byte of each page, and the last byte, which may lie on a page of its own. */
uint64_t touch(const uint8_t *const *address, const size_t *size, size_t count) {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) {
    for (size_t at = 0; at < size[i]; at += PAGE) sum += address[i][at];
    if (size[i] > 0) sum += address[i][size[i] - 1];
  }
  return sum;
}

/* A 64-bit word anywhere: storages need not be aligned. */
typedef uint64_t Word __attribute__((aligned(1), may_alias));

/* Every byte, as the sum of 64-bit words: the compiler makes vectors of it, and memory is what limits it. */
static uint64_t sum_of(const uint8_t *data, size_t size) {
  const Word *words = (const Word *)data;
  const size_t count = size / sizeof(Word);
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += words[i];
  for (size_t i = count * sizeof(Word); i < size; ++i) sum += data[i];
  return sum;
}

uint64_t consume(const uint8_t *const *address, const size_t *size, size_t count) {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += sum_of(address[i], size[i]);
  return sum;
}
