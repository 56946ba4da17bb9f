// A .safetensors file as a checkpoint: a dict from names to tensors, each with its own storage.
#pragma once

#include "checkpoint/archive.h"
#include "container/safetensors.h"

namespace zerocopy {

class SafetensorsArchive final : public Archive {
 public:
  explicit SafetensorsArchive(Content content) : Archive(std::move(content)), header_(*content_.source()) {}

  const char* container() const noexcept override { return "safetensors"; }
  Document document(bool stubs) const override;
  bool is_pickled() const override { return false; }
  Region pickle() const override;
  std::vector<Record> records(std::span<const StorageRequest> storages) override;
  std::uint64_t end() const noexcept override { return content_.source()->size(); }

 private:
  SafetensorsHeader header_;
};

}  // namespace zerocopy
