// Changes fields of a plain HDF5 file by their meaning, and the pickle with matching storages.
#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "mutate.h"

namespace zerocopy::fuzz {
namespace {

using namespace std::string_view_literals;  // NOLINT(google-build-using-namespace): NUL inside

constexpr std::size_t kSymbol = 40;
constexpr std::size_t kMaxObjects = 200;  // objects visited at most
constexpr std::size_t kEndOfFile = 40;
constexpr std::size_t kTypeSize = 24;

constexpr std::array kNumbers{std::uint64_t{0},        std::uint64_t{1},        std::uint64_t{3},
                              std::uint64_t{8},        std::uint64_t{0x11},     std::uint64_t{40},
                              std::uint64_t{96},       std::uint64_t{255},      std::uint64_t{512},
                              std::uint64_t{0xFFFF},   std::uint64_t{1} << 26U, std::uint64_t{1} << 31U,
                              std::uint64_t{1} << 62U, ~std::uint64_t{0} >> 1U, std::uint64_t{1} << 63U,
                              ~std::uint64_t{7},       ~std::uint64_t{0}};

constexpr std::array kTypes{"\x10\x08\0\0\1\0\0\0\0\0\x08\0"sv,
                            "\x10\0\0\0\x08\0\0\0\0\0\x40\0"sv,
                            "\x10\x08\0\0\x08\0\0\0\0\0\x40\0"sv,
                            "\x11\x20\x0f\0\2\0\0\0\0\0\x10\0\x0a\5\0\x0a\x0f\0\0\0"sv,
                            "\x11\x20\x1f\0\4\0\0\0\0\0\x20\0\x17\x08\0\x17\x7f\0\0\0"sv,
                            "\x11\x21\x1f\0\4\0\0\0\0\0\x20\0\x17\x08\0\x17\x7f\0\0\0"sv,
                            "\x13\0\0\0\x08\0\0\0"sv};

constexpr std::array kNames{""sv,         "."sv,         ".."sv,           "0"sv, "a/b"sv, "data"sv,
                            "data.pkl"sv, "byteorder"sv, "offsets_table"sv};

struct Field {
  std::size_t at;
  std::size_t width;
};

struct Dataset {
  std::string path;
  std::size_t shape = 0;   // position of its first dimension
  std::size_t layout = 0;  // position of its address and size
};

// The positions of structures, as far as they can be followed. Fields may be mutated already, so
// none is checked.
class Map {
 public:
  explicit Map(std::string_view file) : file_(file) {
    for (std::size_t at = 8; at < 16; ++at) add(at, 1);
    add(16, 2);
    add(20, 4);
    for (const std::size_t at : {24U, 32U, 40U, 48U}) add(at, 8);
    symbol(56, "");
  }

  std::vector<Field> numbers, names;
  std::vector<std::size_t> types, symbols, places;
  std::vector<Dataset> datasets;

 private:
  template <typename T>
  T get(std::size_t at) const {
    T value{};
    if (at <= file_.size() && sizeof(T) <= file_.size() - at)
      std::memcpy(&value, file_.data() + at, sizeof(T));
    return value;
  }

  void add(std::size_t at, std::size_t width) {
    if (at <= file_.size() && width <= file_.size() - at) numbers.push_back({at, width});
  }

  // Returns whether the position is valid and new.
  bool enter(std::uint64_t at) {
    if (at >= file_.size() || places.size() == kMaxObjects || !seen_.insert(at).second) return false;
    places.push_back(at);
    return true;
  }

  void symbol(std::size_t at, const std::string& path) {
    if (at + kSymbol > file_.size()) return;
    symbols.push_back(at);
    add(at, 8);
    add(at + 8, 8);
    add(at + 16, 4);
    add(at + 24, 8);
    add(at + 32, 8);
    object(get<std::uint64_t>(at + 8), path);
  }

  void object(std::uint64_t at, const std::string& path) {
    if (!enter(at)) return;
    for (const std::size_t field : {0U, 2U}) add(at + field, 2);
    for (const std::size_t field : {4U, 8U}) add(at + field, 4);
    const std::size_t end = std::min<std::size_t>(file_.size(), at + 16 + get<std::uint32_t>(at + 8));
    Dataset dataset{.path = path};
    for (std::size_t message = at + 16; message + 8 <= end; message += 8 + get<std::uint16_t>(message + 2)) {
      add(message, 2);
      add(message + 2, 2);
      add(message + 4, 1);
      body(get<std::uint16_t>(message), message + 8, dataset);
    }
    if (dataset.shape != 0 && dataset.layout != 0) datasets.push_back(dataset);
  }

  void body(unsigned type, std::size_t at, Dataset& dataset) {
    switch (type) {
      case 1:
        dataset.shape = at + 8;
        for (std::size_t byte = 0; byte < 3; ++byte) add(at + byte, 1);
        for (std::size_t i = 0; i < 2 * std::size_t{get<std::uint8_t>(at + 1)}; ++i) add(at + 8 + 8 * i, 8);
        break;
      case 3:
        if (at + kTypeSize <= file_.size()) types.push_back(at);
        break;
      case 8:
        dataset.layout = at + 2;
        add(at, 1);
        add(at + 1, 1);
        add(at + 2, 8);
        add(at + 10, 8);
        break;
      case 0x11:
        add(at, 8);
        add(at + 8, 8);
        node(get<std::uint64_t>(at), heap(get<std::uint64_t>(at + 8)), dataset.path);
        break;
      default:
        break;
    }
  }

  // Returns the position of the names.
  std::uint64_t heap(std::uint64_t at) {
    if (!enter(at)) return file_.size();
    for (const std::size_t field : {8U, 16U, 24U}) add(at + field, 8);
    return get<std::uint64_t>(at + 24);
  }

  void node(std::uint64_t at, std::uint64_t heap, const std::string& path) {
    if (!enter(at)) return;
    if (file_.substr(at, 4) == "SNOD") {
      add(at + 4, 1);
      add(at + 6, 2);
      for (std::size_t i = 0; i < get<std::uint16_t>(at + 6); ++i) {
        const std::size_t place = at + 8 + kSymbol * i;
        symbol(place, child(path, heap, get<std::uint64_t>(place)));
      }
      return;
    }
    add(at + 4, 1);
    add(at + 5, 1);
    add(at + 6, 2);
    for (std::size_t i = 0; i < get<std::uint16_t>(at + 6); ++i) {
      add(at + 24 + 16 * i, 8);
      add(at + 32 + 16 * i, 8);
      node(get<std::uint64_t>(at + 32 + 16 * i), heap, path);
    }
  }

  std::string child(const std::string& path, std::uint64_t heap, std::uint64_t name) {
    if (heap > file_.size() || name > file_.size() - heap) return path;
    const std::string_view rest = file_.substr(heap + name, 64);
    const std::string_view text = rest.substr(0, rest.find('\0'));
    names.push_back({heap + name, text.size()});
    return path.empty() ? std::string(text) : path + "/" + std::string(text);
  }

  std::string_view file_;
  std::set<std::uint64_t> seen_;
};

template <typename T>
const T& any_of(const std::vector<T>& all, Dice& dice) {
  return all[dice.below(all.size())];
}

void put(std::string& file, std::size_t at, std::string_view bytes) {
  if (at > file.size()) return;
  bytes = bytes.substr(0, file.size() - at);
  std::copy(bytes.begin(), bytes.end(), file.begin() + static_cast<std::ptrdiff_t>(at));
}

void put(std::string& file, std::size_t at, std::uint64_t value) { put(file, at, little(value)); }

std::uint64_t get(const std::string& file, std::size_t at) {
  std::uint64_t value = 0;
  if (at <= file.size() && sizeof(value) <= file.size() - at)
    std::memcpy(&value, file.data() + at, sizeof(value));
  return value;
}

void mutate_number(std::string& file, const Map& map, Dice& dice) {
  const Field field = any_of(map.numbers, dice);
  const Field other = any_of(map.numbers, dice);
  std::uint64_t value = get(file, field.at);
  switch (dice.below(5)) {
    case 0:
      value = kNumbers.at(dice.below(kNumbers.size()));
      break;
    case 1:
      value += dice.one_in(2) ? 1 + dice.below(9) : -std::uint64_t{1 + dice.below(9)};
      break;
    case 2:
      value = get(file, other.at);
      break;
    case 3:
      value = file.size() + dice.below(3) - dice.below(3);
      break;
    default:
      value = map.places.empty() ? 0 : any_of(map.places, dice);
      break;
  }
  put(file, field.at, little(value).substr(0, field.width));
}

void mutate_name(std::string& file, const Map& map, Dice& dice) {
  const Field name = any_of(map.names, dice);
  const std::string_view text = dice.one_in(2)
                                    ? kNames.at(dice.below(kNames.size()))
                                    : std::string_view(file).substr(any_of(map.names, dice).at, name.width);
  // Overwrites the name with its NUL, sometimes beyond its end.
  put(file, name.at, std::string(text.substr(0, dice.one_in(4) ? text.size() : name.width + 7)) + '\0');
}

void mutate_symbols(std::string& file, const Map& map, Dice& dice) {
  const std::size_t first = any_of(map.symbols, dice);
  const std::size_t second = any_of(map.symbols, dice);
  const std::string one = file.substr(first, kSymbol);
  put(file, first, file.substr(second, kSymbol));
  if (dice.one_in(2)) put(file, second, one);
}

// Gives a dataset other bytes, in place or at the end of the file.
void place(std::string& file, const Dataset& dataset, std::string_view content, std::uint64_t rows) {
  std::uint64_t at = get(file, dataset.layout);
  const std::uint64_t room = get(file, dataset.layout + 8);
  if (content.size() > room || at > file.size() || room > file.size() - at) {
    file.resize((file.size() + 7) / 8 * 8);
    at = file.size();
    file += content;
    put(file, kEndOfFile, file.size());
  } else {
    put(file, at, content);
  }
  put(file, dataset.shape, rows);
  put(file, dataset.layout, at);
  put(file, dataset.layout + 8, content.size());
}

const Dataset* find(const Map& map, std::string_view end_of_path) {
  const auto found = std::ranges::find_if(
      map.datasets, [&](const Dataset& dataset) { return dataset.path.ends_with(end_of_path); });
  return found == map.datasets.end() ? nullptr : &*found;
}

void fit_table(std::string& file, const Map& map) {
  const Dataset* table = find(map, "offsets_table");
  if (table == nullptr) return;
  std::string rows;
  for (const Dataset& dataset : map.datasets) {
    const std::size_t data = dataset.path.find("/data/");
    if (data == std::string::npos) continue;
    rows +=
        little(std::strtoull(dataset.path.c_str() + data + 6, nullptr, 10)) + file.substr(dataset.layout, 16);
  }
  place(file, *table, rows, rows.size() / 24);
}

void mutate_content(std::string& file, const Map& map, Dice& dice) {
  const Dataset* pickle = find(map, "data.pkl");
  if (pickle == nullptr) return;
  const std::uint64_t at = std::min<std::uint64_t>(get(file, pickle->layout), file.size());
  const std::string changed = mutate_pickle(file.substr(at, get(file, pickle->layout + 8)), dice);
  place(file, *pickle, changed, changed.size());
  if (dice.one_in(3)) return;
  for (const auto& [key, wanted] : small_storages(changed, PersistentId::storage)) {
    const Dataset* storage = find(map, "/data/" + key);
    if (storage != nullptr) place(file, *storage, std::string(wanted.nbytes, 'd'), wanted.nbytes);
  }
  fit_table(file, map);
}

void mutate_once(std::string& file, Dice& dice) {
  const Map map(file);
  switch (dice.below(8)) {
    case 0:
      if (!map.names.empty()) mutate_name(file, map, dice);
      break;
    case 1:
      if (!map.types.empty()) put(file, any_of(map.types, dice), kTypes.at(dice.below(kTypes.size())));
      break;
    case 2:
      if (!map.symbols.empty()) mutate_symbols(file, map, dice);
      break;
    case 3:
      mutate_content(file, map, dice);
      break;
    case 4:
      fit_table(file, map);
      break;
    default:
      if (!map.numbers.empty()) mutate_number(file, map, dice);
      break;
  }
}

std::string mutate_hdf5(std::string_view original, Dice& dice) {
  std::string file(original);
  for (std::size_t n = 1 + dice.below(3); n > 0; --n) mutate_once(file, dice);
  if (dice.one_in(16)) {
    file.resize(dice.below(file.size() + 64));
    if (dice.one_in(2)) put(file, kEndOfFile, file.size());
  }
  return file;
}

}  // namespace
}  // namespace zerocopy::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  return zerocopy::fuzz::mutate_with(zerocopy::fuzz::mutate_hdf5, data, size, max_size, seed);
}
