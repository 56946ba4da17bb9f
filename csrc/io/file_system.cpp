#include "io/file_system.h"

#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "memory/errors.h"

namespace zerocopy {
namespace {

struct KnownFileSystem {
  std::uint32_t type;
  const char* name;
  bool network;
};

// From linux/magic.h, and from file systems outside of the kernel.
constexpr std::array kKnown = std::to_array<KnownFileSystem>({
    {0x00006969, "NFS", true},
    {0x0000517B, "SMB", true},
    {0xFF534D42, "CIFS", true},
    {0xFE534D42, "SMB2", true},
    {0x65735546, "FUSE", true},
    {0x01021997, "9p", true},
    {0x00C36400, "Ceph", true},
    {0x0BD00BD0, "Lustre", true},
    {0x5346414F, "AFS", true},
    {0x6B414653, "kAFS", true},
    {0x73757245, "Coda", true},
    {0x47504653, "GPFS", true},
    {0x01161970, "GFS2", true},
    {0x7461636F, "OCFS2", true},
    {0x20030528, "OrangeFS", true},
    {0x19830326, "BeeGFS", true},
    {0xAAD7AAEA, "PanFS", true},
    {0xBEEFDEAD, "SNFS", true},
    {0x61636673, "ACFS", true},
    {0x786F4256, "VirtualBox shared folder", true},
    {0xBACBACBC, "VMware shared folder", true},
    {0x7C7C6673, "Parallels shared folder", true},
    {0x0000EF53, "ext4", false},
    {0x58465342, "XFS", false},
    {0x9123683E, "Btrfs", false},
    {0x01021994, "tmpfs", false},
    {0x858458F6, "ramfs", false},
    {0x2FC12FC1, "ZFS", false},
    {0x794C7630, "overlayfs", false},
    {0xF2F52010, "F2FS", false},
    {0xCA451A4E, "bcachefs", false},
    {0x73717368, "SquashFS", false},
    {0xE0F5E1E2, "EROFS", false},
    {0x00009660, "ISO 9660", false},
    {0x00004D44, "FAT", false},
    {0x2011BAB0, "exFAT", false},
    {0x5346544E, "NTFS", false},
    {0x7366746E, "NTFS3", false},
});

FileSystem of_status(const struct statfs& status) {
  // The numbers have 32 bits. A signed f_type would extend its sign to the upper bits.
  return file_system_of_type(static_cast<std::uint32_t>(status.f_type));
}

}  // namespace

FileSystem file_system_of_type(std::uint64_t type) {
  const auto* const known = std::ranges::find(kKnown, type, &KnownFileSystem::type);
  if (known == kKnown.end()) return {"type " + hex(type), false};
  return {known->name, known->network};
}

FileSystem file_system_of(const std::string& path) {
  struct statfs status {};
  if (::statfs(path.c_str(), &status) != 0) throw FileError(errno, path);
  return of_status(status);
}

FileSystem file_system_of(int descriptor, const std::string& name) {
  struct statfs status {};
  if (::fstatfs(descriptor, &status) != 0) throw FileError(errno, name);
  return of_status(status);
}

}  // namespace zerocopy
