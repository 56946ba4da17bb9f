#include "checkpoint/legacy_archive.h"

#include <algorithm>
#include <bit>

#include "container/zip_end.h"
#include "pickle/globals.h"
#include "pickle/machine.h"
#include "pickle/opcode.h"
#include "text/name_table.h"

namespace zerocopy {
namespace {

// The encodings of an integer in a pickle: the bytes of LONG1, or decimal digits.
struct Spelling {
  std::string_view bytes;
  std::string_view digits;
};
constexpr Spelling kMagic{"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", "119547037146038801333356"};
constexpr Spelling kVersion{"\xe9\x03", "1001"};

constexpr std::uint64_t kFirstWindow = 1024;  // four of the five pickles are shorter
constexpr std::uint64_t kMaxPickle = std::uint64_t{1} << 30U;
constexpr std::uint64_t kMaxMagic = std::uint64_t{1} << 20U;

[[noreturn]] void fail(const std::string& reason) { throw FormatError("legacy file: " + reason); }

bool spells(const Instruction& instruction, const Spelling& wanted) {
  switch (instruction.opcode) {
    case Opcode::binint:
    case Opcode::binint1:
    case Opcode::binint2:
      return std::to_string(instruction.number) == wanted.digits;
    case Opcode::long1:
    case Opcode::long4:
      return instruction.bytes.text() == wanted.bytes;
    case Opcode::text_int:
      return instruction.bytes.text() == wanted.digits;
    case Opcode::text_long:
      return instruction.bytes.text() == std::string(wanted.digits) + "L";
    default:
      return false;
  }
}

// Returns whether a pickle is just that integer.
bool is_integer(ByteSpan pickle, const Spelling& wanted) {
  Decoder decoder(pickle);
  Instruction instruction;
  decoder.next(instruction);
  while (instruction.opcode == Opcode::proto || instruction.opcode == Opcode::frame)
    decoder.next(instruction);
  if (!spells(instruction, wanted)) return false;
  decoder.next(instruction);
  return instruction.opcode == Opcode::stop;
}

// Returns whether a pickle evaluates to that integer in any way. torch accepts all, so this reader
// must recognise every file that is a checkpoint to torch.
bool comes_to(const Region& pickle, const Spelling& wanted) {
  try {
    if (is_integer(pickle.bytes(), wanted)) return true;
    const Document document = read_pickle(pickle);
    const Value& root = document.root;
    if (root.is(Kind::big_integer)) return root.as<Blob>().bytes.text() == wanted.bytes;
    return root.is(Kind::integer) && std::to_string(root.integer()) == wanted.digits;
  } catch (const Error&) {
    return false;
  }
}

// Returns the pickle at `offset`. An unterminated pickle is returned as far as it goes: the caller
// reports the error, after listing its globals.
Region pickle_at(const Source& source, std::uint64_t offset, std::uint64_t longest) {
  const std::uint64_t left = std::min(source.size() - offset, longest);
  for (std::uint64_t window = kFirstWindow;; window *= 4) {
    Region bytes = source.read({offset, std::min(window, left)});
    try {
      return bytes.slice({0, pickle_size(bytes.bytes())});
    } catch (const TruncatedError&) {
      if (window >= left) return bytes;
    } catch (const FormatError&) {
      return bytes;
    }
  }
}

}  // namespace

bool LegacyArchive::recognises(const Source& source) {
  const Region head = source.read({0, std::min<std::uint64_t>(4, source.size())});
  // A zip signature is also a sequence of opcodes.
  if (head.bytes().text() == "PK\3\4") return false;
  return comes_to(pickle_at(source, 0, kMaxMagic), kMagic);
}

LegacyArchive::LegacyArchive(Content content) : Archive(std::move(content)) {
  if (!comes_to(next_pickle(), kMagic)) fail("wrong magic number");
  if (!comes_to(next_pickle(), kVersion)) fail("wrong or missing protocol version");
  const Region sys_info = next_pickle();
  for (const auto& [module, name] : list_globals(sys_info.bytes())) {
    throw RefusedError("legacy file: sys_info names " + quote(module) + "." + quote(name));
  }
  object_ = next_pickle();
  keys_at_ = end_;
}

Region LegacyArchive::next_pickle() {
  Region pickle = pickle_at(source(), end_, kMaxPickle);
  end_ += pickle.size();
  return pickle;
}

std::vector<std::string_view> LegacyArchive::read_keys() {
  keys_ = next_pickle();
  const Document document = read_pickle(keys_);
  if (!document.externals.empty()) throw RefusedError("legacy file: the list of keys names globals");
  if (!document.root.is(Kind::list)) fail("the list of keys is not a list");
  // Views: copies of one long key, repeated from the memo, would exhaust memory.
  std::vector<std::string_view> keys;
  for (const Value& key : document.root.as<Sequence>().items) {
    if (!key.is_text()) fail("a key is not a string");
    keys.push_back(key.as<Blob>().bytes.text());
  }
  return keys;
}

std::vector<Record> LegacyArchive::records(std::span<const StorageRequest> storages) {
  end_ = keys_at_;
  NameTable<NameHash> wanted;
  for (std::size_t i = 0; i < storages.size(); ++i) wanted.insert(storages[i].key, i);
  std::vector<Record> records(storages.size());
  std::vector<bool> found(storages.size());
  for (const std::string_view key : read_keys()) {
    const auto* entry = wanted.find(key);
    if (entry == nullptr) fail("data of storage " + quote(key) + ", which the object does not have");
    if (found[entry->value]) fail("data of storage " + quote(key) + " twice");
    found[entry->value] = true;
    records[entry->value] = next_record(storages[entry->value]);
    records[entry->value].name = key;
  }
  for (std::size_t i = 0; i < storages.size(); ++i) {
    // Empty storages of several types share a key.
    const std::size_t first = wanted.find(storages[i].key)->value;
    if (!found[first]) fail("missing data of storage " + quote(storages[i].key));
    records[i] = records[first];
  }
  if (ends_like_a_zip(source(), end_)) fail("it ends as a zip archive: two checkpoints in one file");
  return records;
}

Record LegacyArchive::next_record(const StorageRequest& storage) {
  std::uint64_t count = 0;
  source().read(end_, std::as_writable_bytes(std::span(&count, 1)));
  if (count != storage.nbytes / storage.dtype->size) {
    fail("storage " + quote(storage.key) + " has " + std::to_string(storage.nbytes / storage.dtype->size) +
         " elements, its data " + std::to_string(count) + " (at " + hex(end_) + ")");
  }
  const Extent extent{end_ + sizeof(count), storage.nbytes};
  if (!extent.fits(source().size())) {
    fail("truncated: the data of storage " + quote(storage.key) + " at " + hex(extent.offset) + " needs " +
         std::to_string(extent.size) + " bytes, " + std::to_string(source().size() - extent.offset) +
         " are left");
  }
  end_ = extent.offset + extent.size;
  return {.name = {}, .extent = extent, .encoding = Encoding::stored, .size = extent.size};
}

}  // namespace zerocopy
