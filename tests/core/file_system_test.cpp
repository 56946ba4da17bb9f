#include "io/file_system.h"

#include "support.h"

namespace zerocopy::test::file_system_test {
namespace {

// No test can mount most of these.
TEST(FileSystems, NetworkTypes) {
  const std::vector<std::tuple<std::uint64_t, std::string, bool>> table = {
      {0x6969, "NFS", true},        {0xFF534D42, "CIFS", true},
      {0xFE534D42, "SMB2", true},   {0x517B, "SMB", true},
      {0x65735546, "FUSE", true},   {0x01021997, "9p", true},
      {0x00C36400, "Ceph", true},   {0x0BD00BD0, "Lustre", true},
      {0x47504653, "GPFS", true},   {0x19830326, "BeeGFS", true},
      {0x5346414F, "AFS", true},    {0xEF53, "ext4", false},
      {0x58465342, "XFS", false},   {0x9123683E, "Btrfs", false},
      {0x01021994, "tmpfs", false}, {0x794C7630, "overlayfs", false},
      {0x2FC12FC1, "ZFS", false},   {0x12345678, "type 0x12345678", false}};
  for (const auto& [type, name, network] : table) {
    EXPECT_EQ(file_system_of_type(type).name, name);
    EXPECT_EQ(file_system_of_type(type).network, network) << name;
  }
}

}  // namespace
}  // namespace zerocopy::test::file_system_test
