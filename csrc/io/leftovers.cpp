#include "io/leftovers.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>

#include "memory/errors.h"

namespace zerocopy {
namespace {

constexpr std::string_view kSuffix = ".part";
constexpr std::size_t kTokenDigits = 16;     // between the prefix and the suffix
constexpr std::size_t kMaxStemLength = 100;  // bytes: names have 255

std::string prefix_of(const std::string& target) {
  return "." + target.substr(target.rfind('/') + 1).substr(0, kMaxStemLength) + ".";
}

std::string new_token() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) {
    throw FileError(errno, "", "the system gave no random number");
  }
  std::array<char, kTokenDigits + 1> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(number));
  return digits.data();
}

bool is_leftover(std::string_view name, std::string_view prefix) {
  if (name.size() != prefix.size() + kTokenDigits + kSuffix.size() || !name.starts_with(prefix)) return false;
  const std::string_view token = name.substr(prefix.size(), kTokenDigits);
  return name.ends_with(kSuffix) && token.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::string new_temporary(const std::string& target) {
  return target.substr(0, target.rfind('/') + 1) + prefix_of(target) + new_token() + std::string(kSuffix);
}

bool lock(int descriptor) noexcept {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  return ::fcntl(descriptor, F_OFD_SETLK, &whole) == 0 || (errno != EAGAIN && errno != EACCES);
}

void delete_leftovers(const std::string& target) {
  const std::string prefix = prefix_of(target);
  DIR* listing = ::opendir(target.substr(0, target.rfind('/') + 1).c_str());
  if (listing == nullptr) return;  // a folder that may be written to and not listed
  const int at = ::dirfd(listing);
  while (const dirent* entry = ::readdir(listing)) {
    if (!is_leftover(&entry->d_name[0], prefix)) continue;
    const int found = ::openat(at, &entry->d_name[0], O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (found < 0) continue;
    struct flock whole {};
    whole.l_type = F_WRLCK;
    if (::fcntl(found, F_OFD_SETLK, &whole) == 0) ::unlinkat(at, &entry->d_name[0], 0);
    ::close(found);
  }
  ::closedir(listing);
}

}  // namespace zerocopy
