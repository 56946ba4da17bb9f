// Carries a plan out: writes its records to a target, and computes checksums on the way.
//
// run() does not allocate, lock or throw, because a copy of the process calls it.
#pragma once

#include <array>
#include <vector>

#include "container/archive_plan.h"
#include "io/target.h"

namespace zerocopy {

class ArchiveWriter {
 public:
  // Both must outlive this object. `written`, the count of bytes of storages, may be in memory that
  // processes share.
  ArchiveWriter(ArchivePlan& plan, Target& target, std::uint64_t& written);

  // Writes the planned steps that are not written yet. Stops after about `limit` further bytes of storages,
  // or at memory whose address is not known. Returns 0 or an errno.
  int run(std::uint64_t limit) noexcept;

  // Returns whether all planned steps were written.
  bool is_done() const noexcept { return step_ == plan_.steps_.size(); }

  // Tells the place of the bytes at which run() has stopped.
  void provide(std::uint64_t address) noexcept { plan_.steps_[step_].begin = address; }
  void provide(int source, std::uint64_t offset, std::optional<std::uint32_t> known) noexcept;
  bool wants_memory() const noexcept;

 private:
  int carry_out(const Step& step, std::uint64_t stop) noexcept;
  int write_memory(const Step& step, std::uint64_t stop) noexcept;
  int write_part(const Step& step, std::uint64_t stop) noexcept;
  int read_checksum(const Step& step) noexcept;
  int pad(std::uint64_t size) noexcept;
  int append(ByteSpan bytes) noexcept;
  int flush() noexcept;
  void complete(const Step& step) noexcept;
  void identify(const Step& step) noexcept;
  void put(std::uint64_t place, std::uint32_t crc) noexcept;
  void count(const Step& step, std::uint64_t size) noexcept;

  ArchivePlan& plan_;
  Target& target_;
  std::uint64_t& written_;
  std::size_t step_ = 0;    // the step that comes next, or is under way
  std::uint64_t done_ = 0;  // bytes of that step
  std::uint32_t crc_ = 0;   // of these bytes
  std::vector<std::byte> buffer_;
  std::array<ByteSpan, 32> queue_;  // small parts, which are written in one call
  std::size_t queued_ = 0;
};

}  // namespace zerocopy
