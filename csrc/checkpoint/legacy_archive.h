// A checkpoint from before PyTorch 1.6: consecutive pickles, then the storages' bytes.
//
//   magic │ 1001 │ {sys_info} │ the object │ [keys] │ count │ bytes │ count │ bytes │ …
//
// `count` is a little-endian int64 that counts elements. Only the object's pickle tells the element
// size, so storages are located all at once. Data are little-endian whatever sys_info says. Written
// by torch.serialization._legacy_save.
#pragma once

#include "checkpoint/archive.h"

namespace zerocopy {

class LegacyArchive final : public Archive {
 public:
  // Checks the magic number, which is the first pickle of the file.
  static bool recognises(const Source& source);

  // Reads the first three pickles. They are compared and walked, never executed.
  explicit LegacyArchive(Content content);

  const char* container() const noexcept override { return "legacy"; }
  Region pickle() const override { return object_; }
  Document document(bool stubs) const override {
    return read_pickle(
        object_,
        {.ids = PersistentId::storage_with_view, .stubs = stubs, .fixed_budget = content_.fixed_budget()});
  }
  std::vector<Record> records(std::span<const StorageRequest> storages) override;
  std::uint64_t end() const noexcept override { return end_; }

 private:
  Region next_pickle();
  std::vector<std::string_view> read_keys();
  Record next_record(const StorageRequest& storage);

  const Source& source() const noexcept { return *content_.source(); }

  Region object_;
  std::uint64_t keys_at_ = 0;
  Region keys_;            // their pickle, which the records' names point into
  std::uint64_t end_ = 0;  // of the bytes read so far
};

}  // namespace zerocopy
