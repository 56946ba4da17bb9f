// A new file that takes an old one's name when it is whole, and not before.
//
// A process that has the old file open or mapped keeps its bytes. The new file does not have a name
// while it is written (O_TMPFILE), so a killed process leaves nothing behind. Some file systems lack
// O_TMPFILE. There the new file lies beside the target and is locked while it is written. A lock
// ends with its process, so the next process that writes there can delete an abandoned file.
//
// A user who may not read the old file may not read the new one at any moment. The new file is
// private until it has the old file's owner, access control list and other extended attributes. If
// the system refuses the old group or list, nobody else gets the permissions of that group or list.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "io/target.h"

namespace zerocopy {

struct NewFileOptions {
  std::string like;       // the file whose mode, owner and attributes the new one gets; empty: the target
  bool has_name = false;  // from the beginning: libhdf5 and other processes open it by its name
  bool is_new = false;    // takes no name that another file has
  bool syncs = true;
};

// Properties of the old file that this user may not set, for one line of the log.
enum Lost : unsigned { kLostOwner = 1, kLostGroup = 2, kLostList = 4 };

class NewFile final : public Target {
 public:
  // `target` is absolute, without symbolic links. Throws FileError.
  NewFile(std::string target, NewFileOptions options);
  ~NewFile() override { abandon(); }

  int descriptor() const noexcept { return descriptor_; }
  const std::string& target() const noexcept { return target_; }
  std::string path() const;  // to open the file by

  // The functions below do not allocate, lock or throw. So a copy of the process can call them even
  // if other threads held locks when it was made. They return 0 or an errno.
  int append(std::span<const ByteSpan> parts) noexcept override;
  int skip(std::uint64_t size) noexcept override;
  int share(int source, Extent extent, bool& shared) noexcept override;
  int copy(int source, Extent extent, std::uint64_t& done) noexcept override;

  // Brings the bytes to the disk.
  int sync() noexcept;

  // Makes the file like the old one, gives it the target's name, or `name` in the same folder, and
  // syncs the folder.
  int take_name(const char* name = nullptr) noexcept;

  // Removes a name that take_name() gave, unless another file has it now.
  void drop_name(const char* name) const noexcept;

  // Makes take_name() only abandon the file: a later save has given the target its content.
  void give_way() noexcept { gives_way_ = true; }
  bool gives_way() const noexcept { return gives_way_; }

  // Closes the file, and removes its name if it is still the temporary one.
  void abandon() noexcept;

  // Makes this process the owner. A child of fork does not own the file: it cannot remove its name.
  void adopt() noexcept;

  // Closes the file in this process, since a copy of the process writes it. abandon() still removes
  // the temporary name, which a copy that is killed may leave.
  void leave_to_copy() noexcept;

  // A combination of Lost.
  unsigned lost() const noexcept { return lost_; }

 private:
  void create(mode_t mode, bool has_name);
  int take_after_present() noexcept;
  int copy_attributes(const char* from, bool has_group, mode_t& mode) noexcept;
  int replace(const char* name) noexcept;
  void advance(std::uint64_t size) noexcept;

  std::string target_;
  std::string folder_;
  std::string temporary_;  // the file's first name
  std::string like_;
  // Room for the names of attributes, and for a value. Few saves touch it.
  std::unique_ptr<char[]> attributes_;  // NOLINT(*-avoid-c-arrays)
  bool is_named_ = false;
  bool may_have_name_ = false;
  bool is_new_;
  bool syncs_;
  bool gives_way_ = false;
  bool copies_ranges_ = true;
  bool sends_ = true;
  int descriptor_ = -1;
  pid_t owner_;
  unsigned lost_ = 0;
  std::uint64_t position_ = 0;
  std::uint64_t begun_ = 0;  // up to here the disk was told to write
};

}  // namespace zerocopy
