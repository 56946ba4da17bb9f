#include "gds/library.h"

#include <dlfcn.h>

#include <cstring>

#include "memory/errors.h"

namespace zerocopy {
namespace {

// Never closed: both libraries start threads and register exit handlers.
class Opened {
 public:
  Opened(const char* what, const std::vector<std::string>& names) {
    std::string faults;
    for (const std::string& name : names) {
      handle_ = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
      if (handle_ != nullptr) {
        name_ = name;
        return;
      }
      const char* fault = ::dlerror();
      if (faults.empty() && fault != nullptr) faults = fault;
    }
    throw UnsupportedError(std::string(what) + " cannot be loaded: " + faults);
  }

  const std::string& name() const noexcept { return name_; }

  template <typename Function>
  void find(const char* symbol, Function*& function) const {
    find_if_there(symbol, function);
    if (function == nullptr) throw UnsupportedError(name_ + " lacks the function " + symbol);
  }

  template <typename Function>
  void find_if_there(const char* symbol, Function*& function) const {
    void* found = ::dlsym(handle_, symbol);
    static_assert(sizeof found == sizeof function);
    std::memcpy(&function, &found, sizeof function);
  }

 private:
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace

std::shared_ptr<const Library> Library::open(const std::vector<std::string>& cuda,
                                             const std::vector<std::string>& cufile) {
  const std::shared_ptr<Library> made(new Library());
  abi::Functions& to = made->functions_;

  const Opened driver("the CUDA driver", cuda);
  driver.find("cuInit", to.cuInit);
  driver.find("cuDeviceGetCount", to.cuDeviceGetCount);
  driver.find("cuCtxGetCurrent", to.cuCtxGetCurrent);
  driver.find("cuMemAlloc_v2", to.cuMemAlloc_v2);
  driver.find("cuMemFree_v2", to.cuMemFree_v2);
  driver.find("cuMemcpy", to.cuMemcpy);
  driver.find("cuStreamSynchronize", to.cuStreamSynchronize);

  const Opened files("cuFile", cufile);
  files.find("cuFileDriverOpen", to.cuFileDriverOpen);
  // The first version leaks memory, so libcufile added a second.
  files.find_if_there("cuFileDriverClose_v2", to.cuFileDriverClose);
  if (to.cuFileDriverClose == nullptr) files.find("cuFileDriverClose", to.cuFileDriverClose);
  files.find("cuFileDriverGetProperties", to.cuFileDriverGetProperties);
  files.find_if_there("cuFileGetVersion", to.cuFileGetVersion);
  files.find("cuFileHandleRegister", to.cuFileHandleRegister);
  files.find("cuFileHandleDeregister", to.cuFileHandleDeregister);
  files.find("cuFileBufRegister", to.cuFileBufRegister);
  files.find("cuFileBufDeregister", to.cuFileBufDeregister);
  files.find("cuFileRead", to.cuFileRead);
  files.find("cuFileWrite", to.cuFileWrite);
  files.find_if_there("cuFileBatchIOSetUp", to.cuFileBatchIOSetUp);
  files.find_if_there("cuFileBatchIOSubmit", to.cuFileBatchIOSubmit);
  files.find_if_there("cuFileBatchIOGetStatus", to.cuFileBatchIOGetStatus);
  files.find_if_there("cuFileBatchIOCancel", to.cuFileBatchIOCancel);
  files.find_if_there("cuFileBatchIODestroy", to.cuFileBatchIODestroy);
  const bool whole = to.cuFileBatchIOSetUp != nullptr && to.cuFileBatchIOSubmit != nullptr &&
                     to.cuFileBatchIOGetStatus != nullptr && to.cuFileBatchIOCancel != nullptr;
  if (!whole) to.cuFileBatchIODestroy = nullptr;
  files.find_if_there("cuFileReadAsync", to.cuFileReadAsync);
  made->path_ = files.name();
  return made;
}

}  // namespace zerocopy
