#include <array>

#include "mutate.h"
#include "pickle/machine.h"
#include "pickle/opcode.h"

namespace zerocopy::fuzz {
namespace {

using namespace std::string_view_literals;  // NOLINT(google-build-using-namespace): NUL inside

constexpr std::array kWords{
    "N"sv,
    ")"sv,
    "]"sv,
    "}"sv,
    "("sv,
    "t"sv,
    "R"sv,
    "Q"sv,
    "a"sv,
    "e"sv,
    "s"sv,
    "u"sv,
    "b"sv,
    "\x81"sv,
    "\x85"sv,
    "\x86"sv,
    "\x87"sv,
    "\x88"sv,
    "\x89"sv,
    "\x8f"sv,
    "\x90"sv,
    "\x91"sv,
    "\x93"sv,
    "\x94"sv,
    "q\0"sv,
    "q\1"sv,
    "q\7"sv,
    "h\0"sv,
    "h\1"sv,
    "h\7"sv,
    "K\0"sv,
    "K\1"sv,
    "J\xff\xff\xff\xff"sv,
    "J\0\0\0\x80"sv,
    "U\1a"sv,
    "X\1\0\0\0"
    "0"sv,
    "C\1b"sv,
    "\x8a\1\2"sv,
    "G\0\0\0\0\0\0\0\0"sv,
    "cx\ny\n"sv,
    ")R"sv,
    "}b"sv,
    "(t"sv,
    "(u"sv,
    "(e"sv,
};

std::vector<std::string> instructions_of(std::string_view pickle) {
  std::vector<std::uint64_t> starts;
  try {
    Decoder decoder{ByteSpan(pickle)};
    Instruction instruction;
    do {
      decoder.next(instruction);
      starts.push_back(instruction.offset);
    } while (instruction.opcode != Opcode::stop);
  } catch (const FormatError&) {  // keeps the instructions before the error
  }
  std::vector<std::string> instructions;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::uint64_t end = i + 1 < starts.size() ? starts[i + 1] : pickle.size();
    instructions.emplace_back(pickle.substr(starts[i], end - starts[i]));
  }
  return instructions;
}

// Replaces the argument, with a valid length.
std::string mutate_argument(const std::string& instruction) {
  if (instruction.empty()) return instruction;
  const std::string opcode = instruction.substr(0, 1);
  const Argument argument = kArguments[static_cast<std::uint8_t>(opcode[0])];
  const bool wide = argument == Argument::bytes4 || argument == Argument::signed_bytes4;
  // An earlier mutation changed it.
  if (instruction.size() < (wide ? 5 : 2)) return mutate_blindly(instruction);
  switch (argument) {
    case Argument::bytes1: {
      const std::string bytes = mutate_blindly(instruction.substr(2)).substr(0, 255);
      return opcode + little(static_cast<std::uint8_t>(bytes.size())) + bytes;
    }
    case Argument::bytes4:
    case Argument::signed_bytes4: {
      const std::string bytes = mutate_blindly(instruction.substr(5));
      return opcode + little(static_cast<std::uint32_t>(bytes.size())) + bytes;
    }
    case Argument::none:
    case Argument::line:
    case Argument::two_lines:
      return mutate_blindly(instruction);
    default: {  // numbers keep their width
      std::string number = mutate_blindly(instruction.substr(1));
      number.resize(instruction.size() - 1);
      return opcode + number;
    }
  }
}

}  // namespace

Region copy_of(std::string_view bytes) {
  Region region = Region::allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(region.data(), bytes.data(), bytes.size());
  return region;
}

std::string mutate_pickle(std::string_view pickle, Dice& dice) {
  std::vector<std::string> code = instructions_of(pickle);
  if (code.empty()) return mutate_blindly(std::string(pickle));
  for (std::size_t times = 1 + dice.below(3); times > 0; --times) {
    const std::size_t i = dice.below(code.size());
    const std::size_t j = dice.below(code.size());
    const auto at = code.begin() + static_cast<std::ptrdiff_t>(i);
    switch (dice.below(7)) {
      case 0:
        if (code.size() > 1) code.erase(at);
        break;
      case 1:
        std::swap(code[i], code[j]);
        break;
      case 2: {  // repeats a run of instructions
        const auto from = code.begin() + static_cast<std::ptrdiff_t>(j);
        const std::vector<std::string> run(
            from,
            from + static_cast<std::ptrdiff_t>(1 + dice.below(std::min<std::size_t>(8, code.size() - j))));
        code.insert(at, run.begin(), run.end());
        break;
      }
      case 3:
        code.insert(at, code[j]);
        break;
      case 4:
        code.insert(at, std::string(kWords[dice.below(kWords.size())]));
        break;
      default:
        code[i] = mutate_argument(code[i]);
    }
  }
  std::string changed;
  for (const std::string& instruction : code) changed += instruction;
  return changed;
}

std::vector<std::pair<std::string, StorageRequest>> small_storages(std::string_view pickle,
                                                                   PersistentId form) {
  constexpr std::uint64_t kSmall = 4096;
  std::vector<std::pair<std::string, StorageRequest>> storages;
  try {
    const Document document = read_pickle(copy_of(pickle), {.ids = form});
    std::uint64_t total = 0;
    for (const StorageRequest& wanted : storage_requests(document)) {
      if (wanted.nbytes > kSmall || (total += wanted.nbytes) > kSmall) return {};
      storages.emplace_back(wanted.key, wanted);
    }
  } catch (const Error&) {
    return {};
  }
  return storages;
}

}  // namespace zerocopy::fuzz
