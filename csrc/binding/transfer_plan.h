// Copies storages to a device. python/zerocopy/loading/device/staging.py drives the copy, and
// threads of this class fill the slots.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <vector>

#include "binding/torch_bridge.h"
#include "io/ring.h"

namespace zerocopy {

class TransferPlan {
 public:
  // The plan owns `sources`. The caller keeps all other sources of `staged_storages` alive.
  explicit TransferPlan(std::vector<StagedStorage> staged_storages,
                        std::vector<std::unique_ptr<const Source>> sources = {});
  // Plans a copy of each source as a whole.
  static std::shared_ptr<TransferPlan> of(std::vector<std::unique_ptr<const Source>> sources);
  TransferPlan(const TransferPlan&) = delete;
  TransferPlan& operator=(const TransferPlan&) = delete;
  ~TransferPlan();

  const StagingPlan& staging() const noexcept { return staging_; }

  // Returns (offset in the slot, offset on the device, size) for each copy of a chunk.
  pybind11::list copies(std::size_t chunk) const;

  void start(unsigned threads);
  // Lends a slot: page-aligned memory in a CPU storage. The caller keeps it until its copy has
  // finished.
  void lend(const pybind11::object& storage, std::uint64_t offset);
  void wait(std::size_t chunk);
  void stop();

  // Returns the copy of staged storage `i` within the device allocation.
  TorchStorage copied_storage(const pybind11::object& whole, std::size_t i) const;

 private:
  SlotReader& reader();

  std::vector<StagedStorage> staged_storages_;
  std::vector<std::unique_ptr<const Source>> sources_;
  StagingPlan staging_;
  std::optional<SlotReader> reader_;
};

void register_transfer_plan(pybind11::module_& module);

}  // namespace zerocopy
