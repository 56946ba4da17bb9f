#include "container/planned_archive.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "container/archive_identifier.h"
#include "container/checksum.h"

namespace zerocopy {
namespace {

// Bytes per write. Their checksum is computed while they are in the processor's cache.
constexpr std::uint64_t kPiece = std::uint64_t{4} << 20U;
constexpr std::size_t kBuffer = std::size_t{1} << 20U;

void count(SaveReport& report, const Step& step, std::uint64_t size) noexcept {
  if ((step.flags & kCounts) != 0) {
    std::atomic_ref(report.written).fetch_add(size, std::memory_order_relaxed);
  }
}

// Writes bytes before this process reads them for the checksum. For missing memory (a mapped file
// that was cut), write() returns an error, while a read would raise a signal.
int write_memory(NewFile& file, const Step& step, ByteSpan header, std::uint32_t& crc,
                 SaveReport& report) noexcept {
  // NOLINTNEXTLINE(*-reinterpret-cast,performance-no-int-to-ptr): a number from Python
  const auto* begin = reinterpret_cast<const std::byte*>(step.begin);
  for (std::uint64_t at = 0; at < step.size; at += kPiece) {
    const ByteSpan piece(begin + at, static_cast<std::size_t>(std::min(kPiece, step.size - at)));
    if (const int error = file.append(header, piece)) return error;
    header = {};
    if ((step.flags & kHasChecksum) != 0) crc = crc32(crc, piece);
    count(report, step, piece.size());
  }
  return file.append(header, {});
}

void put(std::vector<std::byte>& literals, std::uint64_t place, std::uint32_t crc) noexcept {
  std::array<std::byte, 4> bytes{};
  for (unsigned i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(crc >> (8U * i));
  std::memcpy(literals.data() + place, bytes.data(), bytes.size());
}

void require_within(Extent extent, std::size_t whole) {
  if (!extent.fits(whole)) throw FormatError("save plan: a step refers to bytes outside of the literals");
}

}  // namespace

PlannedArchive::PlannedArchive(std::vector<Step> steps, std::vector<std::byte> literals,
                               std::vector<std::byte> text, std::vector<ChecksumReference> references)
    : steps_(std::move(steps)),
      literals_(std::move(literals)),
      text_(std::move(text)),
      references_(std::move(references)),
      checksums_(steps_.size()),
      buffer_(kBuffer) {
  for (const Step& step : steps_) {
    if (step.kind == StepKind::literal) require_within({step.begin, step.size}, literals_.size());
    if (step.kind == StepKind::identifier) require_within({step.begin, kIdentifierDigits}, literals_.size());
    if ((step.flags & kHasChecksum) == 0) continue;
    for (const std::uint64_t place : {step.first_place, step.second_place}) {
      require_within({place, sizeof(std::uint32_t)}, literals_.size());
    }
  }
  std::uint64_t last = 0;
  for (const ChecksumReference& reference : references_) {
    if (reference.position < last || reference.position > text_.size() || reference.step >= steps_.size()) {
      throw FormatError("save plan: a checksum reference is out of range");
    }
    last = reference.position;
  }
}

bool PlannedArchive::write(NewFile file, const FileNaming& naming, SaveReport& report) noexcept {
  int error = write_all(file, report);
  if (error == 0) {
    error = file.finish(naming);
  } else {
    forget(naming);
  }
  std::atomic_ref(report.error).store(error, std::memory_order_relaxed);
  std::atomic_ref(report.state)
      .store(error == 0 ? SaveReport::finished : SaveReport::failed, std::memory_order_release);
  return error == 0;
}

std::vector<int> PlannedArchive::sources() const {
  std::vector<int> found;
  for (const Step& step : steps_) {
    if (step.kind == StepKind::part) found.push_back(step.source);
  }
  return found;
}

int PlannedArchive::write_all(NewFile& file, SaveReport& report) noexcept {
  ByteSpan header;  // of the next storage; both are written in one call
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    std::uint32_t crc = 0;
    int error = 0;
    if (step.kind != StepKind::memory) {
      error = file.append(header, {});
      header = {};
    }
    if (error != 0) return error;
    switch (step.kind) {
      case StepKind::literal:
        header = {literals_.data() + step.begin, static_cast<std::size_t>(step.size)};
        break;
      case StepKind::hole:
        error = file.skip(step.size);
        count(report, step, step.size);
        break;
      case StepKind::memory:
        error = write_memory(file, step, header, crc, report);
        header = {};
        break;
      case StepKind::part:
        error = write_part(file, step, crc, report);
        break;
      case StepKind::identifier:
        crc = identify(step.begin);
        break;
    }
    if (error != 0) return error;
    checksums_[i] = crc;
    if ((step.flags & kHasChecksum) != 0) {
      put(literals_, step.first_place, crc);
      put(literals_, step.second_place, crc);
    }
  }
  return file.append(header, {});
}

int PlannedArchive::write_part(NewFile& file, const Step& step, std::uint32_t& crc,
                               SaveReport& report) noexcept {
  const bool wants_checksum = (step.flags & kHasChecksum) != 0;
  bool shared = false;
  if (const int error = file.share(step.source, {step.begin, step.size}, shared)) return error;
  if (shared) {
    count(report, step, step.size);
    crc = step.known;
    if (!wants_checksum || (step.flags & kKnowsChecksum) != 0) return 0;
    crc = 0;
    return checksum_of_part(step, {step.begin, step.size}, crc);
  }
  for (std::uint64_t at = 0; at < step.size; at += kPiece) {
    const Extent piece{step.begin + at, std::min(kPiece, step.size - at)};
    if (const int error = file.copy(step.source, piece, buffer_)) return error;
    if (wants_checksum) {
      if (const int error = checksum_of_part(step, piece, crc)) return error;
    }
    count(report, step, piece.size);
  }
  return 0;
}

int PlannedArchive::checksum_of_part(const Step& step, Extent extent, std::uint32_t& crc) noexcept {
  while (extent.size > 0) {
    const std::size_t wanted = std::min<std::uint64_t>(extent.size, buffer_.size());
    std::size_t got = 0;
    if (const int error = read_part(step.source, extent.offset, {buffer_.data(), wanted}, got)) return error;
    if (got < wanted) return ESTALE;
    crc = crc32(crc, {buffer_.data(), got});
    extent = {extent.offset + got, extent.size - got};
  }
  return 0;
}

// Writes the identifier's digits to the literals, and returns their checksum.
std::uint32_t PlannedArchive::identify(std::uint64_t place) noexcept {
  Sha256 hash;
  std::uint64_t done = 0;
  for (const ChecksumReference& reference : references_) {
    hash.update({text_.data() + done, static_cast<std::size_t>(reference.position - done)});
    done = reference.position;
    std::array<char, 10> digits{};  // fits any 32-bit number
    const auto [end, _] =
        std::to_chars(digits.data(), digits.data() + digits.size(), checksums_[reference.step]);
    hash.update(ByteSpan(std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data()))));
  }
  hash.update({text_.data() + done, static_cast<std::size_t>(text_.size() - done)});
  const auto digits = digits_of(hash.digest());
  std::memcpy(literals_.data() + place, digits.data(), digits.size());
  return crc32(0, {literals_.data() + place, digits.size()});
}

}  // namespace zerocopy
