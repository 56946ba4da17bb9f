// An HDF5 file as a checkpoint, in one of two layouts.
//
//   records of a torch.save archive                any other file
//
//     /archive/data.pkl        the pickle             /group/sub/name      a dataset: a tensor
//     /archive/data/<key>      one storage each
//     /archive/byteorder       as in a zip            groups are nested dicts
//     /offsets_table           key, offset, size
//
// zerocopy.convert writes the first layout, which the HDF5 notebook introduced. Its table serves
// readers that skip the datasets. This reader inspects every dataset, and refuses a table that
// disagrees.
#pragma once

#include "checkpoint/archive.h"
#include "container/hdf5.h"
#include "text/name_table.h"

namespace zerocopy {

class Hdf5Archive final : public Archive {
 public:
  // Throws FormatError where the listing contradicts the file or itself.
  Hdf5Archive(Content content, Hdf5Listing listing);

  const char* container() const noexcept override { return "hdf5"; }
  Document document(bool stubs) const override;
  bool is_pickled() const override { return pickle_ != nullptr; }
  Region pickle() const override;
  std::vector<Record> records(std::span<const StorageRequest> storages) override;
  std::span<const LeftOut> left_out() const noexcept override { return left_out_; }
  std::uint64_t end() const noexcept override { return content_.source()->size(); }

 private:
  const Hdf5Entry* find(std::string_view path) const;
  void require_apart() const;
  void find_pickle();
  bool read_byteorder() const;
  void check_table(const Hdf5Entry& table) const;
  Record record_of(const Hdf5Entry& entry) const;
  Region bytes_of(const Hdf5Entry& entry, std::uint64_t most) const;
  Document tree() const;

  Hdf5Listing listing_;
  std::vector<LeftOut> left_out_;
  NameTable<NameHash> by_path_;
  const Hdf5Entry* pickle_ = nullptr;
  std::string storages_;  // the common start of the storages' paths
};

}  // namespace zerocopy
