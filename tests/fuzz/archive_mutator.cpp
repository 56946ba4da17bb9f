#include "mutate.h"

namespace zerocopy::fuzz {
namespace {

std::string mutate_archive(std::string_view file, Dice& dice) {
  return file.starts_with("PK") ? mutate_zip(file, dice) : mutate_legacy(file, dice);
}

}  // namespace
}  // namespace zerocopy::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return zerocopy::fuzz::mutate_with(zerocopy::fuzz::mutate_archive, data, size, max_size, seed);
}
