// Temporary names of new files, and the files that killed processes have left under them.
#pragma once

#include <string>

namespace zerocopy {

// Returns a name beside the target for a new file. If its writer is killed, delete_leftovers() knows it.
std::string new_temporary(const std::string& target);

// Locks a file, if nobody else has. Returns true too where the file system has no locks: then nothing
// is a leftover. Not flock(), which h5py uses on the files it writes.
bool lock(int descriptor) noexcept;

// Deletes files that killed processes have left. A file that is being written is locked.
void delete_leftovers(const std::string& target);

}  // namespace zerocopy
