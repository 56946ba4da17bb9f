// Builds plain HDF5 files of which any field can be wrong.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "support.h"

namespace zerocopy::test {

inline const std::string kHdf5Signature = "\x89HDF\r\n\x1a\n";

// Types as libhdf5 writes them, padded.
inline const std::string kUint8 = "\x10\0\0\0\1\0\0\0\0\0\x08\0\0\0\0\0"s;

inline std::string hdf5_message(std::uint64_t type, const std::string& body, int flags = 0) {
  return u16(type) + u16(body.size()) + std::string(1, static_cast<char>(flags)) + "\0\0\0"s + body;
}

inline std::string hdf5_dataspace(const std::vector<std::uint64_t>& shape) {
  std::string body = "\1"s + static_cast<char>(shape.size()) + std::string(6, '\0');
  for (const std::uint64_t n : shape) body += u64(n);
  return hdf5_message(1, body);
}

inline std::string hdf5_contiguous(std::uint64_t address, std::uint64_t size) {
  return hdf5_message(8, "\3\1"s + u64(address) + u64(size) + std::string(6, '\0'));
}

struct Hdf5Header {
  std::vector<std::string> messages;
  std::uint64_t version = 1;
  std::uint64_t names = 1;  // number of names for it

  std::string bytes() const {
    std::string all;
    for (const std::string& message : messages) all += message;
    return u16(version) + u16(messages.size()) + u32(names) + u32(all.size()) + u32(0) + all;
  }
};

// Grows from its superblock to its root group, which comes last.
class Hdf5File {
 public:
  using Member = std::pair<std::string, std::uint64_t>;  // a name, and where its header is

  // The positions of a group's structures.
  struct Group {
    std::uint64_t header, tree, leaf, heap, names;
  };

  std::uint64_t append(const std::string& bytes) {
    file_.resize((file_.size() + 7) / 8 * 8);
    const std::size_t at = file_.size();
    file_ += bytes;
    return at;
  }

  // Returns the position of the header of a dataset of bytes.
  std::uint64_t bytes(const std::string& data) {
    return append(Hdf5Header{
        {hdf5_dataspace({data.size()}), hdf5_message(3, kUint8), hdf5_contiguous(append(data), data.size())}}
                      .bytes());
  }

  // Writes the names in the given order, in leaves of up to `most` names.
  Group group(const std::vector<Member>& members, std::size_t most = 8) {
    std::string names(8, '\0');
    std::vector<std::uint64_t> at;
    for (const auto& [name, header] : members) {
      at.push_back(names.size());
      names += name + '\0';
      names.resize((names.size() + 7) / 8 * 8);
    }
    Group group{};
    group.names = append(names);
    group.heap = append("HEAP\0\0\0\0"s + u64(names.size()) + u64(1) + u64(group.names));
    std::string children = u64(0);
    std::uint64_t leaves = 0;
    for (std::size_t i = 0; i < members.size(); i += most, ++leaves) {
      const std::size_t end = std::min(members.size(), i + most);
      std::string leaf = "SNOD\1\0"s + u16(end - i);
      for (std::size_t j = i; j < end; ++j) leaf += symbol(at[j], members[j].second);
      leaf.resize(8 + 40 * most);
      group.leaf = append(leaf);
      children += u64(group.leaf) + u64(at[end - 1]);
    }
    children.resize(8 + 16 * 32);  // the full size of a node
    group.tree = append("TREE\0\0"s + u16(leaves) + u64(kNone) + u64(kNone) + children);
    group.header = append(Hdf5Header{{hdf5_message(0x11, u64(group.tree) + u64(group.heap))}}.bytes());
    return group;
  }

  static std::string symbol(std::uint64_t name, std::uint64_t header) {
    return u64(name) + u64(header) + std::string(24, '\0');
  }

  void put(std::size_t at, const std::string& bytes) { file_.replace(at, bytes.size(), bytes); }

  // Each leaf holds up to twice `half_a_leaf` names.
  std::string file(const Group& root, std::uint64_t half_a_leaf = 4) {
    put(0, kHdf5Signature + "\0\0\0\0\0\x08\x08\0"s + u16(half_a_leaf) + u16(16) + u32(0) + u64(0) +
               u64(kNone) + u64(file_.size()) + u64(kNone) + symbol(0, root.header));
    return file_;
  }
  std::string file(const std::vector<Member>& members) { return file(group(members)); }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  std::string file_ = std::string(96, '\0');
};

}  // namespace zerocopy::test
