/* A file system that is far away: shows a folder, read-only, and answers each request late.
 *
 *   latency_fs FOLDER MOUNTPOINT [-o delay_us=N] [-o fail_from=BYTES,fail_to=BYTES] [FUSE's own options]
 *
 * delay_us   what each read waits before it is answered, as a network and a server would
 * fail_from, fail_to   reads of any byte of a file from the one to the other fail with EIO
 *
 * Requests wait side by side, as those of a network file system do: so many at once are answered in the time of one. */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct options {
  char* folder;
  unsigned long delay_us;
  long long fail_from;
  long long fail_to;
} options = {NULL, 0, 0, 0};

static const struct fuse_opt specs[] = {
    {"delay_us=%lu", offsetof(struct options, delay_us), 0},
    {"fail_from=%lld", offsetof(struct options, fail_from), 0},
    {"fail_to=%lld", offsetof(struct options, fail_to), 0},
    FUSE_OPT_END,
};

static int folder_fd;

/* FUSE gives "/a/b"; the folder's own is "." */
static const char* inside(const char* path) { return path[1] == '\0' ? "." : path + 1; }

static void* far_init(struct fuse_conn_info* connection, struct fuse_config* config) {
  /* Reads ahead count as background; with the 12 that are usual, requests would queue here. */
  connection->max_background = 256;
  connection->congestion_threshold = 256;
  config->kernel_cache = 1;
  return NULL;
}

static int far_getattr(const char* path, struct stat* status, struct fuse_file_info* file) {
  (void)file;
  return fstatat(folder_fd, inside(path), status, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : -errno;
}

static int far_readdir(const char* path, void* buffer, fuse_fill_dir_t fill, off_t offset,
                       struct fuse_file_info* file, enum fuse_readdir_flags flags) {
  (void)offset, (void)file, (void)flags;
  int fd = openat(folder_fd, inside(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* folder = fd < 0 ? NULL : fdopendir(fd);
  if (folder == NULL) return -errno;
  for (struct dirent* entry; (entry = readdir(folder)) != NULL;) fill(buffer, entry->d_name, NULL, 0, 0);
  closedir(folder);
  return 0;
}

static int far_open(const char* path, struct fuse_file_info* file) {
  int fd = openat(folder_fd, inside(path), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  file->fh = (uint64_t)fd;
  return 0;
}

static int far_read(const char* path, char* buffer, size_t size, off_t offset, struct fuse_file_info* file) {
  (void)path;
  const struct timespec delay = {(time_t)(options.delay_us / 1000000), (long)(options.delay_us % 1000000) * 1000};
  if (options.delay_us > 0) nanosleep(&delay, NULL);
  if (offset < options.fail_to && offset + (off_t)size > options.fail_from) return -EIO;
  ssize_t got = pread((int)file->fh, buffer, size, offset);
  return got < 0 ? -errno : (int)got;
}

static int far_release(const char* path, struct fuse_file_info* file) {
  (void)path;
  close((int)file->fh);
  return 0;
}

static const struct fuse_operations operations = {
    .init = far_init,
    .getattr = far_getattr,
    .readdir = far_readdir,
    .open = far_open,
    .read = far_read,
    .release = far_release,
};

/* The first word that is no option is the folder; the next one stays for FUSE. */
static int keep(void* data, const char* word, int key, struct fuse_args* rest) {
  (void)data, (void)rest;
  if (key != FUSE_OPT_KEY_NONOPT || options.folder != NULL) return 1;
  options.folder = strdup(word);
  return 0;
}

int main(int argc, char** argv) {
  struct fuse_args args = FUSE_ARGS_INIT(argc, argv);
  if (fuse_opt_parse(&args, &options, specs, keep) != 0) return 2;
  folder_fd = options.folder == NULL ? -1 : open(options.folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_fd < 0) {
    fprintf(stderr, "usage: latency_fs FOLDER MOUNTPOINT [-o delay_us=N,fail_from=BYTES,fail_to=BYTES]\n");
    return 2;
  }
  fuse_opt_insert_arg(&args, 1, "-oro,max_threads=128,attr_timeout=3600,entry_timeout=3600");
  return fuse_main(args.argc, args.argv, &operations, NULL);
}
