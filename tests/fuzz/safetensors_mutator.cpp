// Changes a header token by token, and updates its length.
#include <array>
#include <vector>

#include "mutate.h"

namespace zerocopy::fuzz {
namespace {

constexpr std::size_t kLength = 8;

constexpr std::array kWords{"0",
                            "1",
                            "4",
                            "64",
                            "-1",
                            "9223372036854775807",
                            "18446744073709551615",
                            "1e2",
                            "[]",
                            "{}",
                            "null",
                            "true",
                            "\"F32\"",
                            "\"BOOL\"",
                            "\"F4\"",
                            "\"U64\"",
                            "\"a\"",
                            "\"\\u0061\"",
                            "\"__metadata__\"",
                            "\"dtype\"",
                            "\"shape\"",
                            "\"data_offsets\""};

// Splits a text into strings, numbers and single characters.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    if (text[i] == '"') {
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      ++end;
    } else if (std::string_view("{}[]:, ").find(text[i]) == std::string_view::npos) {
      while (end < text.size() && std::string_view("{}[]:, \"").find(text[end]) == std::string_view::npos)
        ++end;
    }
    words.emplace_back(text.substr(i, end - i));
    i = end;
  }
  return words;
}

void mutate_words(std::vector<std::string>& words, Dice& dice) {
  const std::size_t at = dice.below(words.size());
  const std::size_t from = dice.below(words.size());
  const std::size_t count = 1 + dice.below(std::min<std::size_t>(words.size() - from, 24));
  const std::vector<std::string> piece(words.begin() + static_cast<std::ptrdiff_t>(from),
                                       words.begin() + static_cast<std::ptrdiff_t>(from + count));
  const auto place = words.begin() + static_cast<std::ptrdiff_t>(at);
  switch (dice.below(5)) {
    case 0:
      words[at] = kWords.at(dice.below(kWords.size()));
      break;
    case 1:
      words[at] = words[from];
      break;
    case 2:
      words.insert(place, piece.begin(), piece.end());
      break;
    case 3:
      words.erase(place);
      break;
    default:
      words[at] = mutate_blindly(words[at]);
      break;
  }
}

std::string mutate_safetensors(std::string_view file, Dice& dice) {
  if (file.size() < kLength) return mutate_blindly(std::string(file));
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLength);
  if (length == 0 || length > file.size() - kLength) return mutate_blindly(std::string(file));
  std::vector<std::string> words = words_of(file.substr(kLength, length));
  std::string data(file.substr(kLength + length));
  for (std::size_t n = 1 + dice.below(3); n > 0 && !words.empty(); --n) mutate_words(words, dice);
  if (dice.one_in(4)) data.resize(dice.below(2 * data.size() + 8));
  std::string header;
  for (const std::string& word : words) header += word;
  return little<std::uint64_t>(header.size()) + header + data;
}

}  // namespace
}  // namespace zerocopy::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return zerocopy::fuzz::mutate_with(zerocopy::fuzz::mutate_safetensors, data, size, max_size, seed);
}
