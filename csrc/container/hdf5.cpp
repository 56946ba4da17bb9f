#include "container/hdf5.h"

#include <algorithm>
#include <array>
#include <set>

#include "container/hdf5_object.h"
#include "memory/budget.h"
#include "memory/cursor.h"
#include "text/utf8.h"

namespace zerocopy {
namespace {

using hdf5::expect;
using hdf5::kSuperblock;
using hdf5::Object;
using namespace std::string_view_literals;

constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n"sv;
constexpr std::uint64_t kUndefinedAddress = ~std::uint64_t{0};
constexpr std::uint64_t kEntry = 40;    // of a name in a leaf
constexpr std::uint64_t kHeader = 512;  // of an object; h5py writes 272 bytes
// copies of a path: in the listing, the document, the names, Python
constexpr std::uint64_t kCopies = 4;
constexpr std::uint64_t kMaxHeap = 1U << 26U;
constexpr int kMaxDepth = 64;
constexpr std::size_t kLevels = 16;  // levels of a tree
constexpr std::uint16_t kMaxSymbols = 512;

class PlainReader {
 public:
  explicit PlainReader(const Source& source)
      : source_(source),
        left_(source.size() / kEntry),
        unread_(source.size()),
        end_(source.size()),
        text_(source.size(), "") {}

  Hdf5Listing read() {
    const Symbol root = superblock();
    group(root, object(root.header), "", 0);
    require_apart();
    return std::move(listing_);
  }

 private:
  struct Symbol {
    std::uint64_t name;
    std::uint64_t header;
    std::uint32_t cached;  // kind of the cached data: none, a group's tables, a soft link
    std::uint64_t tree;
    std::uint64_t heap;
  };

  // The bounds of the names in a group: above `after`, up to `last`.
  struct Range {
    std::string_view after{};
    std::optional<std::string_view> to{};
  };

  // The last node of a level and its right sibling: libhdf5 also walks along a level.
  struct Siblings {
    std::uint64_t last = kUndefinedAddress;
    std::uint64_t right = kUndefinedAddress;
  };

  // A group while its names are read.
  struct Members {
    const std::string& path;
    int depth;
    Region heap;
    std::string_view before{};  // the previous name
    std::array<Siblings, kLevels> beside{};
  };

  // Reads the bytes of one structure. All structures together cannot exceed the file.
  Region own(std::uint64_t address, std::uint64_t size) {
    expect(Extent{address, size}.fits(end_) && size <= unread_);
    unread_ -= size;
    taken_.push_back({address, size});
    return source_.read({address, size});
  }

  // Refuses overlapping structures, which libhdf5 refuses too.
  void require_apart() {
    std::ranges::sort(taken_, {}, &Extent::offset);
    std::uint64_t from = 0;
    for (const Extent& extent : taken_) {
      expect(extent.offset >= from);
      from = extent.offset + extent.size;
    }
  }

  // Reads the superblock and returns the root group.
  Symbol superblock() {
    const Region region = own(0, kSuperblock);
    Cursor at(region.bytes(), "hdf5");
    expect(at.take(kSignature.size()).text() == kSignature);
    // Versions, sizes of addresses and lengths.
    expect(at.take(8).text() == "\0\0\0\0\0\x08\x08\0"sv);
    symbols_ = std::uint64_t{2} * at.read<std::uint16_t>();
    children_ = std::uint64_t{2} * at.read<std::uint16_t>();
    expect(symbols_ != 0 && symbols_ <= kMaxSymbols && children_ != 0);
    expect(at.read<std::uint32_t>() == 0);                  // not open for writing
    expect(at.read<std::uint64_t>() == 0);                  // no user block
    expect(at.read<std::uint64_t>() == kUndefinedAddress);  // free space
    end_ = at.read<std::uint64_t>();
    expect(end_ <= source_.size());
    expect(at.read<std::uint64_t>() == kUndefinedAddress);  // driver
    return symbol(at);
  }

  static Symbol symbol(Cursor& at) {
    Symbol read{.name = at.read<std::uint64_t>(),
                .header = at.read<std::uint64_t>(),
                .cached = at.read<std::uint32_t>(),
                .tree = 0,
                .heap = 0};
    at.skip(4);
    read.tree = at.read<std::uint64_t>();
    read.heap = at.read<std::uint64_t>();
    return read;
  }

  Object object(std::uint64_t address) {
    expect(headers_.insert(address).second && address < end_);
    Object found = hdf5::read_object(source_.read({address, std::min(kHeader, end_ - address)}));
    taken_.push_back({address, found.size});
    return found;
  }

  void group(const Symbol& symbol, const Object& found, const std::string& path, int depth) {
    expect(depth <= kMaxDepth);
    expect(!found.dataspace && !found.layout);
    Cursor at(hdf5::required(found.symbol_table), "hdf5");
    const auto tree = at.read<std::uint64_t>();
    const auto heap_address = at.read<std::uint64_t>();
    expect(symbol.cached == 0 || (symbol.cached == 1 && symbol.tree == tree && symbol.heap == heap_address));
    Members members{.path = path, .depth = depth, .heap = heap_at(heap_address)};
    node(members, tree, std::nullopt, {});
    for (const Siblings& level : members.beside) expect(level.right == kUndefinedAddress);
  }

  Region heap_at(std::uint64_t address) {
    const Region head = own(address, 32);
    Cursor at(head.bytes(), "hdf5");
    expect(at.take(8).text() == "HEAP\0\0\0\0"sv);
    const auto size = at.read<std::uint64_t>();
    const auto free = at.read<std::uint64_t>();
    expect(size <= kMaxHeap);
    Region names = own(at.read<std::uint64_t>(), size);
    free_list(names.bytes(), free);
    return names;
  }

  // The free list of deleted names: blocks with the next block's position and their own size.
  static void free_list(ByteSpan names, std::uint64_t free) {
    for (std::size_t left = names.size() / 16; free != 1; --left) {
      expect(left != 0 && free != 0);
      const std::uint64_t here = free;
      Cursor at(names.subspan({here, 16}), "hdf5");
      free = at.read<std::uint64_t>();
      expect(at.read<std::uint64_t>() <= names.size() - here);
    }
  }

  std::string_view name_at(const Members& members, std::uint64_t at) {
    const ByteSpan names = members.heap.bytes();
    expect(at < names.size());
    const auto name = Cursor(names.subspan({at, names.size() - at}), "hdf5").take_until(std::byte{0}).text();
    expect(text_.take(name.size()));
    return name;
  }

  // Reads a node of the tree, or at level -1 a leaf of names. libhdf5 finds names by binary search
  // at each level, so the keys must enclose the names, and names must be sorted.
  void node(Members& members, std::uint64_t address, std::optional<std::uint8_t> level_above, Range range) {
    if (level_above == 0) return leaf(members, address, range);
    const Region region = own(address, 24 + 16 * children_ + 8);
    Cursor at(region.bytes(), "hdf5");
    expect(at.take(5).text() == "TREE\0"sv);
    const auto level = at.read<std::uint8_t>();
    const auto count = at.read<std::uint16_t>();
    expect(count <= children_ && level < kLevels && (!level_above || level + 1 == *level_above));
    expect(count != 0 || level == 0);  // libhdf5 descends by the first child
    const auto left = at.read<std::uint64_t>();
    Siblings& before = members.beside.at(level);
    expect(left == before.last && (left == kUndefinedAddress || before.right == address));
    before = {address, at.read<std::uint64_t>()};
    std::string_view key = name_at(members, at.read<std::uint64_t>());
    for (std::uint16_t i = 0; i < count; ++i) {
      expect(left_-- != 0);
      const auto child = at.read<std::uint64_t>();
      const std::string_view next = name_at(members, at.read<std::uint64_t>());
      node(members, child, level, {std::max(range.after, key), std::min(range.to.value_or(next), next)});
      key = next;
    }
  }

  void leaf(Members& members, std::uint64_t address, const Range& range) {
    const Region region = own(address, 8 + symbols_ * kEntry);
    Cursor at(region.bytes(), "hdf5");
    expect(at.take(6).text() == "SNOD\1\0"sv);
    const auto count = at.read<std::uint16_t>();
    expect(count <= symbols_);
    for (std::uint16_t i = 0; i < count; ++i) {
      expect(left_-- != 0);
      const Symbol found = symbol(at);
      const std::string_view name = name_at(members, found.name);
      expect(name != "." && name.find('/') == std::string_view::npos && members.before < name);
      expect(range.after < name && name <= range.to);
      expect(is_utf8(ByteSpan(name), Surrogates::refuse));
      members.before = name;
      member(found, members, name);
    }
  }

  void member(const Symbol& symbol, const Members& members, std::string_view name) {
    expect(text_.take(kCopies * (members.path.size() + name.size() + 1)));
    std::string path = members.path;
    if (!path.empty()) path += '/';
    path += name;
    const Object found = object(symbol.header);
    if (found.symbol_table) {
      listing_.push_back({.path = path, .is_group = true});
      return group(symbol, found, path, members.depth + 1);
    }
    expect(symbol.cached == 0);
    listing_.push_back(hdf5::read_dataset(found, end_));
    listing_.back().path = std::move(path);
  }

  const Source& source_;
  std::uint64_t left_;    // bounds the names and nodes by the file's size
  std::uint64_t unread_;  // bytes not yet claimed by structures
  std::uint64_t end_;
  Budget text_;                 // names may overlap, and a path repeats the names of its groups
  std::uint64_t symbols_ = 0;   // per leaf, at most
  std::uint64_t children_ = 0;  // per node
  std::vector<Extent> taken_;
  std::set<std::uint64_t> headers_;  // of objects; each may have one name only
  Hdf5Listing listing_;
};

}  // namespace

bool is_hdf5(const Source& source) {
  return source.size() >= kSignature.size() &&
         source.read({0, kSignature.size()}).bytes().text() == kSignature;
}

std::optional<Hdf5Listing> list_plain_hdf5(const Source& source) {
  try {
    return PlainReader(source).read();
  } catch (const hdf5::NotPlain&) {
  } catch (const FormatError&) {  // a structure ends too soon
  }
  return std::nullopt;
}

}  // namespace zerocopy
