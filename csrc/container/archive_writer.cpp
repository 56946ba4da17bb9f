#include "container/archive_writer.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>
#include <utility>

#include "container/archive_identifier.h"
#include "container/checksum.h"

namespace zerocopy {
namespace {

// Bytes per write. Their checksum is computed while they are in the processor's cache.
constexpr std::uint64_t kPiece = std::uint64_t{4} << 20U;
constexpr std::size_t kBuffer = std::size_t{1} << 19U;
constexpr auto kPadding = [] {
  std::array<char, 4096> filled{};
  for (char& each : filled) each = 'Z';
  return filled;
}();

}  // namespace

ArchiveWriter::ArchiveWriter(ArchivePlan& plan, Target& target, std::uint64_t& written)
    : plan_(plan), target_(target), written_(written), buffer_(kBuffer) {}

bool ArchiveWriter::wants_memory() const noexcept {
  if (is_done()) return false;
  const Step& step = plan_.steps_[step_];
  return step.kind == StepKind::memory && step.begin == 0;
}

void ArchiveWriter::provide(int source, std::uint64_t offset, std::optional<std::uint32_t> known) noexcept {
  Step& step = plan_.steps_[step_];
  step.kind = StepKind::part;
  step.begin = offset;
  step.source = source;
  step.known = known;
}

int ArchiveWriter::run(std::uint64_t limit) noexcept {
  const std::uint64_t stop = written_ > ~limit ? ~std::uint64_t{0} : written_ + limit;
  while (!is_done() && !wants_memory()) {
    const Step& step = plan_.steps_[step_];
    if (const int error = carry_out(step, stop)) return error;
    if (done_ < step.size) break;
    complete(step);
    ++step_;
    done_ = 0;
    crc_ = 0;
    if (step.counts && written_ >= stop) break;
  }
  return flush();
}

int ArchiveWriter::carry_out(const Step& step, std::uint64_t stop) noexcept {
  int error = 0;
  switch (step.kind) {
    case StepKind::literal:
      done_ = step.size;
      return append(ByteSpan(std::string_view(plan_.literals_).substr(step.begin, step.size)));
    case StepKind::padding:
      done_ = step.size;
      return pad(step.size);
    case StepKind::hole:
      done_ = step.size;
      error = flush();
      if (error == 0) error = target_.skip(step.size);
      count(step, step.size);
      return error;
    case StepKind::memory:
      return write_memory(step, stop);
    case StepKind::part:
      return write_part(step, stop);
    case StepKind::identifier:
      identify(step);
      break;
  }
  return 0;
}

// Writes bytes before this process reads them for the checksum. For missing memory (a mapped file
// that was cut), write() returns an error, while a read would raise a signal.
int ArchiveWriter::write_memory(const Step& step, std::uint64_t stop) noexcept {
  // NOLINTNEXTLINE(*-reinterpret-cast,performance-no-int-to-ptr): a number from Python
  const auto* begin = reinterpret_cast<const std::byte*>(step.begin);
  while (done_ < step.size && written_ < stop) {
    const ByteSpan piece(begin + done_, static_cast<std::size_t>(std::min(kPiece, step.size - done_)));
    int error = append(piece);
    if (error == 0) error = flush();
    if (error != 0) return error;
    if (plan_.checksums_) crc_ = crc32(crc_, piece);
    done_ += piece.size();
    count(step, piece.size());
  }
  return 0;
}

int ArchiveWriter::write_part(const Step& step, std::uint64_t stop) noexcept {
  if (done_ == 0) {
    if (const int error = flush()) return error;
    bool shared = false;
    const Extent all{step.begin, step.size};
    if (const int error = target_.share(step.source, all, shared)) return error;
    if (shared) {
      count(step, step.size);
      return read_checksum(step);
    }
  }
  while (done_ < step.size && written_ < stop) {
    const std::uint64_t size = std::min(kPiece, step.size - done_);
    std::uint64_t copied = 0;
    if (!plan_.checksums_) {
      const Extent piece{step.begin + done_, size};
      if (const int error = target_.copy(step.source, piece, copied)) return error;
    }
    if (copied == 0) {
      copied = std::min<std::uint64_t>(size, buffer_.size());
      const std::span<std::byte> room(buffer_.data(), static_cast<std::size_t>(copied));
      const ByteSpan piece(buffer_.data(), room.size());
      int error = read_part(step.source, step.begin + done_, room);
      if (error == 0) error = target_.append({&piece, 1});
      if (error != 0) return error;
      if (plan_.checksums_) crc_ = crc32(crc_, piece);
    }
    done_ += copied;
    count(step, copied);
  }
  return 0;
}

// Checksums of shared blocks stay those of the first writing. A new checksum of bytes that a disk has
// damaged since would hide the damage.
int ArchiveWriter::read_checksum(const Step& step) noexcept {
  crc_ = step.known.value_or(0);
  while (done_ < step.size) {
    const std::size_t size = std::min<std::uint64_t>(step.size - done_, buffer_.size());
    if (plan_.checksums_ && !step.known) {
      if (const int error = read_part(step.source, step.begin + done_, {buffer_.data(), size})) return error;
      crc_ = crc32(crc_, {buffer_.data(), size});
    }
    done_ += size;
  }
  return 0;
}

int ArchiveWriter::pad(std::uint64_t size) noexcept {
  while (size > 0) {
    const std::size_t piece = std::min<std::uint64_t>(size, kPadding.size());
    if (const int error = append(ByteSpan(std::string_view(kPadding.data(), piece)))) return error;
    size -= piece;
  }
  return 0;
}

int ArchiveWriter::append(ByteSpan bytes) noexcept {
  if (queued_ == queue_.size()) {
    if (const int error = flush()) return error;
  }
  queue_.at(queued_++) = bytes;
  return 0;
}

int ArchiveWriter::flush() noexcept {
  const std::size_t count = std::exchange(queued_, 0);
  return count == 0 ? 0 : target_.append({queue_.data(), count});
}

void ArchiveWriter::complete(const Step& step) noexcept {
  if (!plan_.checksums_ || (step.kind != StepKind::memory && step.kind != StepKind::part)) return;
  plan_.entries_[step.entry].crc = crc_;
  put(step.place, crc_);
}

// Writes the archive's identifier, which torch logs, and the checksums of all records in the
// directory. Equal contents have equal identifiers.
void ArchiveWriter::identify(const Step& step) noexcept {
  Sha256 hash;
  std::array<char, 20> digits{};  // fits any number
  const auto update = [&](std::uint64_t number, std::string_view behind) {
    const auto [end, _] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
    hash.update(ByteSpan(std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data()))));
    hash.update(ByteSpan(behind));
  };
  for (std::size_t i = 0; i < step.entry; ++i) {
    const Entry& entry = plan_.entries_[i];
    hash.update(ByteSpan(entry.name));
    hash.update(ByteSpan(" "));
    update(entry.size, " ");
    update(entry.crc, i + 1 < step.entry ? "\n" : "");
    put(entry.place, entry.crc);
  }
  const auto identifier = digits_of(hash.digest());
  std::memcpy(plan_.literals_.data() + step.begin, identifier.data(), identifier.size());
  Entry& own = plan_.entries_[step.entry];
  own.crc = crc32(0, ByteSpan(std::string_view(identifier.data(), identifier.size())));
  put(own.place, own.crc);
  put(step.place, own.crc);
}

void ArchiveWriter::put(std::uint64_t place, std::uint32_t crc) noexcept {
  for (unsigned i = 0; i < sizeof crc; ++i) plan_.literals_[place + i] = static_cast<char>(crc >> (8U * i));
}

void ArchiveWriter::count(const Step& step, std::uint64_t size) noexcept {
  if (step.counts) std::atomic_ref(written_).store(written_ + size, std::memory_order_relaxed);
}

}  // namespace zerocopy
