// Storages on their way to a device: python/zerocopy/loading/device/staging.py drives, threads here fill its
// slots.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <vector>

#include "binding/torch_bridge.h"
#include "io/ring.h"

namespace zerocopy {

class Haul {
 public:
  // The sources that are handed over live as long as this; others are the caller's business.
  explicit Haul(std::vector<Cargo> cargo, std::vector<std::unique_ptr<const Source>> sources = {});
  // All of each source.
  static std::shared_ptr<Haul> of(std::vector<std::unique_ptr<const Source>> sources);
  Haul(const Haul&) = delete;
  Haul& operator=(const Haul&) = delete;
  ~Haul();

  const Staging& staging() const noexcept { return staging_; }

  // (place in the slot, place on the device, size) of each copy of a chunk.
  pybind11::list copies(std::size_t chunk) const;

  void start(unsigned threads);
  // A page border in a storage on the CPU, which the caller keeps until it was copied from.
  void lend(const pybind11::object& storage, std::uint64_t offset);
  void wait(std::size_t chunk);
  void stop();

  // The bytes of one cargo in the allocation that all were copied to.
  TorchStorage arrived(const pybind11::object& whole, std::size_t i) const;

 private:
  Filling& filling();

  std::vector<Cargo> cargo_;
  std::vector<std::unique_ptr<const Source>> sources_;
  Staging staging_;
  std::optional<Filling> filling_;
};

void register_road(pybind11::module_& module);

}  // namespace zerocopy
