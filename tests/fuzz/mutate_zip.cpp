#include <zlib.h>

#include <algorithm>

#include "container/inflate.h"
#include "container/zip.h"
#include "mutate.h"

namespace zerocopy::fuzz {
namespace {

struct Part {
  std::string name;
  std::string data;  // inflated
  bool deflated = false;
};

std::string deflate(const std::string& data, int level, int strategy) {
  z_stream z{};
  if (::deflateInit2(&z, level, Z_DEFLATED, -MAX_WBITS, 8, strategy) != Z_OK) std::abort();
  std::string input = data;
  std::string out(::deflateBound(&z, data.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(input.data());  // NOLINT: zlib's bytes
  z.avail_in = static_cast<uInt>(input.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());  // NOLINT: zlib's bytes
  z.avail_out = static_cast<uInt>(out.size());
  if (::deflate(&z, Z_FINISH) != Z_STREAM_END) std::abort();
  out.resize(z.total_out);
  ::deflateEnd(&z);
  return out;
}

std::string u16(std::size_t value) { return little(static_cast<std::uint16_t>(value)); }
std::string u32(std::size_t value) { return little(static_cast<std::uint32_t>(value)); }

constexpr std::size_t kOnes = 0xFFFFFFFF;

// Builds a consistent archive of these records, with random choices of the format.
std::string build_zip(const std::string& root, const std::vector<Part>& parts, Dice& dice) {
  const bool align = dice.one_in(2);
  const bool descriptors = dice.one_in(4);
  const bool wide = dice.one_in(4);
  std::string file;
  std::string directory;
  for (const Part& part : parts) {
    const std::string stored = part.deflated ? deflate(part.data, 6, Z_DEFAULT_STRATEGY) : part.data;
    const std::string name = root + "/" + part.name;
    const std::string sizes = wide ? u32(kOnes) + u32(kOnes) : u32(stored.size()) + u32(part.data.size());
    const std::string zip64 = "\1" + std::string(1, '\0') + u16(16) +
                              little(std::uint64_t{part.data.size()}) + little(std::uint64_t{stored.size()});
    const std::string middle = u16(descriptors ? 8 : 0) + u16(part.deflated ? 8 : 0) + u32(0) + u32(0);
    const std::string padding(
        align ? (64 - (file.size() + 30 + name.size() + (wide ? 20 : 0) + 4) % 64) % 64 : 0, '\0');
    const std::string extra =
        (wide && !descriptors ? zip64 : "") + (align ? "FB" + u16(padding.size()) + padding : "");
    const std::string here = descriptors ? u32(0) + u32(0) : sizes;
    directory += "PK\1\2" + u16(20) + u16(20) + middle + sizes + u16(name.size()) +
                 u16(wide ? zip64.size() : 0) + u16(0) + u16(0) + u16(0) + u32(0) + u32(file.size()) + name +
                 (wide ? zip64 : "");
    file += "PK\3\4" + u16(20) + middle + here + u16(name.size()) + u16(extra.size()) + name + extra + stored;
    if (descriptors) file += "PK\7\10" + u32(0) + u32(stored.size()) + u32(part.data.size());
  }
  const std::size_t offset = file.size();
  file += directory;
  if (dice.one_in(8)) {
    const std::size_t record = file.size();
    file += "PK\6\6" + little(std::uint64_t{44}) + u16(45) + u16(45) + u32(0) + u32(0) +
            little(std::uint64_t{parts.size()}) + little(std::uint64_t{parts.size()}) +
            little(std::uint64_t{directory.size()}) + little(std::uint64_t{offset});
    file += "PK\6\7" + u32(0) + little(std::uint64_t{record}) + u32(1);
  }
  const std::string comment = dice.one_in(8) ? "comment" : "";
  return file + "PK\5\6" + u16(0) + u16(0) + u16(parts.size()) + u16(parts.size()) + u32(directory.size()) +
         u32(offset) + u16(comment.size()) + comment;
}

std::vector<Part> parts_of(std::string_view archive, std::string& root) {
  const auto source = std::make_shared<const MemorySource>(copy_of(archive));
  const Zip zip(source);
  root = zip.root();
  std::vector<Part> parts;
  for (std::size_t i = 0; i < zip.count(); ++i) {
    const Record record = zip.record(i);
    const bool deflated = record.encoding == Encoding::deflated;
    const Region data = deflated ? inflate(*source, record.extent, record.size) : source->read(record.extent);
    parts.push_back({std::string(record.name), std::string(data.bytes().text()), deflated});
  }
  return parts;
}

// Adds a record for each storage that the pickle needs.
void suit(std::vector<Part>& parts, const std::string& pickle) {
  for (const auto& [key, wanted] : small_storages(pickle, PersistentId::storage)) {
    const std::string name = "data/" + key;
    auto found = std::ranges::find(parts, name, &Part::name);
    if (found == parts.end()) found = parts.insert(found, {name, "", false});
    found->data.resize(wanted.nbytes, 'd');
  }
}

void change(std::vector<Part>& parts, Dice& dice) {
  const auto pickle = std::ranges::find(parts, "data.pkl", &Part::name);
  if (pickle != parts.end() && dice.one_in(2)) {
    pickle->data = mutate_pickle(pickle->data, dice);
    if (!dice.one_in(3)) suit(parts, std::string(pickle->data));
    return;
  }
  const std::size_t i = dice.below(parts.size());
  switch (dice.below(6)) {
    case 0:
      parts[i].deflated = !parts[i].deflated;
      return;
    case 1:
      parts[i].name = mutate_blindly(parts[i].name);
      return;
    case 2:
      if (parts.size() > 1) parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    case 3:
      std::swap(parts[i], parts[dice.below(parts.size())]);
      return;
    case 4:
      parts.push_back(
          {dice.one_in(2) ? "byteorder" : "data/1", dice.one_in(2) ? "big" : "little", dice.one_in(2)});
      return;
    default:
      parts[i].data = mutate_blindly(parts[i].data);
  }
}

}  // namespace

std::string mutate_zip(std::string_view archive, Dice& dice) {
  std::string root;
  std::vector<Part> parts;
  try {
    parts = parts_of(archive, root);
  } catch (const Error&) {
    return mutate_blindly(std::string(archive));
  }
  change(parts, dice);
  std::string changed = build_zip(root, parts, dice);
  return dice.one_in(4) ? mutate_blindly(std::move(changed)) : changed;
}

std::string mutate_stream(std::string_view input, Dice& dice) {
  if (input.size() < 4 || dice.one_in(3)) return mutate_blindly(std::string(input));
  std::uint32_t claimed = 0;
  std::memcpy(&claimed, input.data(), sizeof(claimed));
  std::string data;
  try {
    const MemorySource source(copy_of(input));
    data = inflate(source, {4, input.size() - 4}, claimed).bytes().text();
  } catch (const Error&) {
    return mutate_blindly(std::string(input));
  }
  data = mutate_blindly(std::move(data));
  if (dice.one_in(4)) data += data;
  if (dice.one_in(8)) data.append(dice.below(100'000), 'z');
  constexpr std::size_t kMaxObjects = 1'000'000;
  if (data.size() > kMaxObjects) data.resize(kMaxObjects);
  const std::string stream = deflate(data, static_cast<int>(dice.below(10)), static_cast<int>(dice.below(5)));
  return u32(data.size() + (dice.one_in(8) ? 1 : 0)) + stream;
}

}  // namespace zerocopy::fuzz
