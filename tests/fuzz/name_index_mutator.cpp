#include "mutate.h"

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return zerocopy::fuzz::mutate_with(zerocopy::fuzz::mutate_pickle, data, size, max_size, seed);
}
