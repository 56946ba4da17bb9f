#include "gds/registered_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "gds/batch.h"
#include "gds/status.h"
#include "io/direct.h"

namespace zerocopy {
namespace {

constexpr std::uint64_t kMaxCall = std::uint64_t{1} << 30U;
constexpr std::uint64_t kPlainPiece = std::uint64_t{1} << 20U;

std::uint64_t lead_to_block(std::uint64_t offset) {
  return (kDirectBlock - offset % kDirectBlock) % kDirectBlock;
}

bool is_equally_aligned(const RegisteredFile::Piece& piece) {
  // NOLINTNEXTLINE(*-reinterpret-cast): the address's offset in its page
  return (reinterpret_cast<std::uintptr_t>(piece.memory.address) - piece.offset) % kDirectBlock == 0;
}

RegisteredFile::Piece from(const RegisteredFile::Piece& piece, std::uint64_t offset) {
  return {piece.offset + offset, piece.memory.from(offset)};
}

RegisteredFile::Piece first(const RegisteredFile::Piece& piece, std::uint64_t size) {
  return {piece.offset, piece.memory.first(size)};
}

std::uint64_t plain_room(const DeviceMemory& memory) { return std::min(memory.size, kPlainPiece); }

void write_to(const File& file, std::uint64_t offset, ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(file.descriptor(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw FileError(errno, file.path());
    const auto done = static_cast<std::uint64_t>(put);
    bytes = bytes.subspan({done, bytes.size() - done});
    offset += done;
  }
}

}  // namespace

std::shared_ptr<RegisteredFile> RegisteredFile::open(std::shared_ptr<Driver> driver, int descriptor,
                                                     std::string name) {
  File plain = File::duplicate(descriptor, std::move(name));
  File direct = File::reopen_direct(plain);
  if (!direct.is_direct()) throw UnsupportedError("its file system refuses O_DIRECT");
  std::shared_ptr<RegisteredFile> made(
      new RegisteredFile(std::move(driver), std::move(plain), std::move(direct)));
  abi::Descriptor description{.type = abi::kLinuxDescriptor, .file = {}, .operations = nullptr};
  description.file.descriptor = made->direct_.descriptor();  // NOLINT(*-union-access): a union of cuFile's
  abi::FileHandle handle = nullptr;
  require_success(made->driver_->call().cuFileHandleRegister(&handle, &description), "cuFileHandleRegister",
                  made->path());
  made->handle_ = handle;
  return made;
}

RegisteredFile::~RegisteredFile() {
  if (handle_ != nullptr && driver_->is_same_process()) driver_->call().cuFileHandleDeregister(handle_);
}

RegisteredFile::Cut RegisteredFile::cut(const Piece& piece) {
  const std::uint64_t head = lead_to_block(piece.offset);
  if (!is_equally_aligned(piece) || piece.memory.size < head + kDirectBlock) return {};
  return {head, (piece.memory.size - head) / kDirectBlock * kDirectBlock};
}

void RegisteredFile::read(const Piece& piece) const {
  const auto [head, body] = cut(piece);
  if (body == 0) {
    // A copy to a device costs more than reading a few pages.
    return piece.memory.size < 4 * kDirectBlock ? read_plainly(piece) : read_bounced(piece);
  }
  read_plainly(first(piece, head));
  const std::uint64_t got = read_blocks(first(from(piece, head), body));
  read_plainly(from(piece, head + got));
}

void RegisteredFile::write(const Piece& piece) const {
  const auto [head, body] = cut(piece);
  if (body == 0) return piece.memory.size < 4 * kDirectBlock ? write_plainly(piece) : write_bounced(piece);
  write_plainly(first(piece, head));
  write_blocks(first(from(piece, head), body));
  write_plainly(from(piece, head + body));
}

void RegisteredFile::read_all(std::span<const Piece> pieces, unsigned timeout_seconds) const {
  std::vector<Piece> bodies;
  std::vector<Piece> others;
  for (const Piece& piece : pieces) {
    const auto [head, body] = cut(piece);
    if (body == 0) {
      others.push_back(piece);
      continue;
    }
    bodies.push_back(first(from(piece, head), body));
    others.push_back(first(piece, head));
    others.push_back(from(piece, head + body));
  }
  if (driver_->has_batches() && Batch::is_worth(bodies)) {
    Batch(*this, timeout_seconds).read(bodies);
  } else {
    for (const Piece& body : bodies) read(body);
  }
  for (const Piece& other : others) read(other);
}

// `call` is cuFileRead or cuFileWrite. Returns the bytes moved: all, or those before a call that
// did not move whole blocks.
template <typename Call>
std::uint64_t RegisteredFile::move_blocks(const Piece& piece, const char* name, Call call) const {
  std::uint64_t done = 0;
  while (done < piece.memory.size) {
    const std::uint64_t size = std::min(piece.memory.size - done, kMaxCall);
    const auto [base, offset] = driver_->registered_address(piece.memory.from(done).first(size));
    errno = 0;
    const ssize_t result = call(handle_, base, size, static_cast<off_t>(piece.offset + done), offset);
    if (result == -1 && errno == EINTR) continue;
    const std::size_t moved = std::min<std::size_t>(require_bytes(result, name, path()), size);
    done += moved;
    if (moved == 0 || moved % kDirectBlock != 0) break;
  }
  return done;
}

// The caller reads the rest through the page cache, which also reports the end of the file.
std::uint64_t RegisteredFile::read_blocks(const Piece& piece) const {
  return move_blocks(piece, "cuFileRead", driver_->call().cuFileRead);
}

void RegisteredFile::write_blocks(const Piece& piece) const {
  write_plainly(from(piece, move_blocks(piece, "cuFileWrite", driver_->call().cuFileWrite)));
}

void RegisteredFile::read_plainly(const Piece& piece) const {
  std::vector<std::byte> host(plain_room(piece.memory));
  std::uint64_t done = 0;
  while (done < piece.memory.size) {
    const std::uint64_t size = std::min<std::uint64_t>(piece.memory.size - done, host.size());
    const std::size_t got = plain_.read_some(piece.offset + done, std::span(host).first(size));
    if (got == 0) throw FormatError(path() + ": the file ends before byte " + hex(piece.offset + done));
    driver_->copy(piece.memory.from(done).first(got), ByteSpan(host.data(), got));
    done += got;
  }
}

void RegisteredFile::write_plainly(const Piece& piece) const {
  std::vector<std::byte> host(plain_room(piece.memory));
  std::uint64_t done = 0;
  while (done < piece.memory.size) {
    const std::uint64_t size = std::min<std::uint64_t>(piece.memory.size - done, host.size());
    driver_->copy(host.data(), piece.memory.from(done).first(size));
    write_to(plain_, piece.offset + done, ByteSpan(host.data(), size));
    done += size;
  }
}

// Reads whole blocks to the bounce buffer, and copies the piece from there.
void RegisteredFile::read_bounced(const Piece& piece) const {
  const Driver::BounceBuffer bounce(*driver_);
  std::uint64_t done = 0;
  while (done < piece.memory.size) {
    const std::uint64_t at = piece.offset + done;
    const std::uint64_t skip = at % kDirectBlock;
    const std::uint64_t size = std::min(piece.memory.size - done, Driver::kBounceSize - skip);
    const std::uint64_t blocks = skip + size + lead_to_block(skip + size);
    const std::uint64_t got = read_blocks({at - skip, bounce.memory().first(blocks)});
    if (got <= skip) return read_plainly(from(piece, done));
    const std::uint64_t part = std::min(got - skip, size);
    driver_->copy(piece.memory.from(done), bounce.memory().from(skip).first(part));
    done += part;
    if (part < size) return read_plainly(from(piece, done));
  }
}

// Writes whole blocks from the bounce buffer. The partial blocks at both ends are written
// separately.
void RegisteredFile::write_bounced(const Piece& piece) const {
  const std::uint64_t head = lead_to_block(piece.offset);
  write_plainly(first(piece, head));
  const Driver::BounceBuffer bounce(*driver_);
  std::uint64_t done = head;
  while (piece.memory.size - done >= kDirectBlock) {
    const std::uint64_t left = (piece.memory.size - done) / kDirectBlock * kDirectBlock;
    const DeviceMemory part = piece.memory.from(done).first(std::min(left, Driver::kBounceSize));
    driver_->copy(bounce.memory(), part);
    write_blocks({piece.offset + done, bounce.memory().first(part.size)});
    done += part.size;
  }
  write_plainly(from(piece, done));
}

RegisteredFile::Pending::Pending(std::shared_ptr<const RegisteredFile> file, const Piece& piece,
                                 abi::Stream stream)
    : file_(std::move(file)), piece_(piece), stream_(stream) {
  const auto [head, body] = cut(piece_);
  if (body == 0 || !file_->driver_->has_streams()) return;
  const DeviceMemory blocks = piece_.memory.from(head).first(body);
  const auto [base, offset] = file_->driver_->registered_address(blocks);
  size_ = body;
  file_offset_ = static_cast<off_t>(piece_.offset + head);
  base_offset_ = offset;
  const abi::Status status = file_->driver_->call().cuFileReadAsync(
      file_->handle_, base, &size_, &file_offset_, &base_offset_, &done_, stream_);
  if (is_refusal(status.code)) return;  // wait() reads everything
  require_success(status, "cuFileReadAsync", file_->path());
  begun_ = true;
}

RegisteredFile::Pending::~Pending() {
  if (begun_ && file_->driver_->is_same_process()) file_->driver_->call().cuStreamSynchronize(stream_);
}

void RegisteredFile::Pending::wait() {
  if (!file_) return;
  if (begun_) {
    require_cuda(file_->driver_->call().cuStreamSynchronize(stream_), "cuStreamSynchronize", file_->path());
  }
  // Retries a failed stream read without the stream. The retry succeeds or reports the error.
  if (!std::exchange(begun_, false) || done_ < 0) {
    file_->read(piece_);
  } else {
    const auto [head, body] = cut(piece_);
    const auto got = std::min(static_cast<std::uint64_t>(done_), body);
    file_->read_plainly(first(piece_, head));
    file_->read_plainly(from(piece_, head + got));
  }
  file_.reset();
}

}  // namespace zerocopy
