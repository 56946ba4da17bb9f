#include "pickle/globals.h"

#include "pickle/memo.h"
#include "support.h"

namespace zerocopy::test::globals_test {
namespace {

std::string listed(std::string_view pickle) {
  const Region bytes = region_of(pickle);
  std::string names;
  for (const auto& [module, name] : list_globals(bytes.bytes())) {
    names.append(module).append(".").append(name).append(" ");
  }
  return names;
}

TEST(ListGlobals, ByEveryOpcode) {
  EXPECT_EQ(listed("cos\nsystem\n."), "os.system ");
  EXPECT_EQ(listed("(ios\nsystem\n."), "os.system ");
  EXPECT_EQ(listed("X\2\0\0\0osX\6\0\0\0system\x93."sv), "os.system ");
  EXPECT_EQ(listed("\x8c\2os\x8c\6system\x93."), "os.system ");
  EXPECT_EQ(listed("U\2osU\6system\x93."), "os.system ");
  EXPECT_EQ(listed("S'os'\nS'system'\n\x93."), "os.system ");
  EXPECT_EQ(listed("Vos\nVsystem\n\x93."), "os.system ");
}

TEST(ListGlobals, FromTheMemo) {
  EXPECT_EQ(listed("\x8c\2osq\1\x8c\6systemq\2h\1h\2\x93."), "os.system ");
  EXPECT_EQ(listed("\x8c\2os\x94\x8c\6system\x94h\0h\1\x93."sv), "os.system ");
  EXPECT_EQ(listed("\x8c\2osr\5\0\0\0\x8c\6systemp6\nj\5\0\0\0g6\n\x93."sv), "os.system ");
  EXPECT_EQ(listed("\x8c\6system\x94\x8c\2osh\0\x93."sv), "os.system ");
}

TEST(ListGlobals, SortedWithoutDuplicates) {
  EXPECT_EQ(listed("cb\nx\nca\ny\ncb\nx\nca\nx\n."), "a.x a.y b.x ");
}

TEST(ListGlobals, StopsAtTheFirstError) {
  EXPECT_EQ(listed("ca\nb\n\xff"), "a.b ");
  EXPECT_EQ(listed("ca\nb\ncc\nd"), "a.b ");
  EXPECT_EQ(listed("ca\nb\n.cc\nd\n."), "a.b ");
  EXPECT_EQ(listed(""), "");
  EXPECT_NO_THROW(listed("\x93."));
}

TEST(ListGlobals, TextMemoIndices) {
  EXPECT_NO_THROW(listed("\x8c\1ap99999999999999999999999\ng99999999999999999999999\np-1\np\ngx\n."));
  EXPECT_NO_THROW(listed("\x8c\1ar\xff\xff\xff\xffj\xff\xff\xff\xff."));
  EXPECT_EQ(listed("\x8c\2osp0\n\x8c\6systemg0\n\x93."), "system.os ");
  for (const char* none : {"", "1&"}) {  // would be 0 if each byte were a digit
    const std::string put = "\x8c\2osp" + std::string(none) + "\n\x8c\6systemg0\n\x93.";
    EXPECT_EQ(listed(put), "os.system ") << none;
  }
}

TEST(KnownGlobal, ComparesPairsByteForByte) {
  EXPECT_EQ(known_global("torch._utils", "_rebuild_tensor_v2").action, Action::rebuild_tensor_v2);
  EXPECT_EQ(known_global("__builtin__", "set").action, Action::set);
  EXPECT_EQ(known_global("torch", "float32").action, Action::dtype);
  EXPECT_EQ(known_global("torch", "FloatStorage").action, Action::storage_class);
  EXPECT_EQ(known_global("torch.storage", "UntypedStorage").dtype, untyped());
  for (const auto& [module, name] :
       std::vector<std::pair<std::string_view, std::string_view>>{{"torch", "_utils._rebuild_tensor_v2"},
                                                                  {"torch._utils._rebuild_tensor_v2", ""},
                                                                  {"", ""},
                                                                  {"torch._utils", "_rebuild_tensor_v2 "},
                                                                  {"torch._utils", "_rebuild_tensor_v2\0"sv},
                                                                  {"torch", ""},
                                                                  {"torch._utils", "_REBUILD_TENSOR_V2"},
                                                                  {"os", "system"},
                                                                  {"__builtin__", "eval"},
                                                                  {"torch", "Tensor"},
                                                                  {"torch.nn", "FloatStorage"},
                                                                  {"numpy", "float32"},
                                                                  {"torch.storage", ""},
                                                                  {"collections", "ordereddict"}}) {
    EXPECT_EQ(known_global(module, name).action, Action::external) << module << " " << name;
  }
}

TEST(DTypes, EachByItsNames) {
  for (const auto* name :
       {"float64", "float32", "bfloat16", "int64", "bool", "complex128", "quint4x2", "uint64"}) {
    ASSERT_NE(dtype_by_name(name), nullptr) << name;
    EXPECT_EQ(dtype_by_name(name)->name, name);
    EXPECT_EQ(dtype_by_name(name)->size % dtype_by_name(name)->swap, 0);
  }
  EXPECT_EQ(dtype_by_storage("DoubleStorage"), dtype_by_name("float64"));
  EXPECT_EQ(dtype_by_storage("UntypedStorage"), untyped());
  for (const auto* name : {"", "float", "float33", "FloatStorage"}) EXPECT_EQ(dtype_by_name(name), nullptr);
  for (const auto* name : {"", "Storage", "float32", "TypedStorage"})
    EXPECT_EQ(dtype_by_storage(name), nullptr);
}

TEST(DTypes, OfALaterRelease) {
  ASSERT_EQ(dtype_by_name("complex16"), nullptr);
  add_dtype("complex16", 2, true, true);
  const DType* added = dtype_by_name("complex16");
  ASSERT_NE(added, nullptr);
  EXPECT_EQ(added->name, "complex16");
  EXPECT_EQ(added->swap, 1);
  EXPECT_TRUE(added->is_complex());
  EXPECT_TRUE(added->storage.empty());
  EXPECT_EQ(known_global("torch", "complex16").dtype, added);

  const DType* known = dtype_by_name("float32");
  add_dtype("float32", 2, false, false);
  EXPECT_EQ(dtype_by_name("float32"), known);
  EXPECT_EQ(known->size, 4);
}

TEST(Memo, ReturnsStoredValues) {
  Memo<int> memo(1000);
  EXPECT_EQ(memo.get(0), nullptr);
  EXPECT_TRUE(memo.put(0, 1));
  EXPECT_TRUE(memo.put(1000, 2));
  EXPECT_TRUE(memo.put(63, 3));
  EXPECT_TRUE(memo.put(64, 4));
  EXPECT_EQ(*memo.get(0), 1);
  EXPECT_EQ(*memo.get(1000), 2);
  EXPECT_EQ(*memo.get(63), 3);
  EXPECT_EQ(*memo.get(64), 4);
  EXPECT_EQ(memo.get(1), nullptr);
  EXPECT_EQ(memo.get(999), nullptr);
  EXPECT_TRUE(memo.put(0, 5));
  EXPECT_EQ(*memo.get(0), 5);
  EXPECT_TRUE(memo.append(6));  // the number of entries; index 0 was put twice
  EXPECT_EQ(*memo.get(4), 6);
}

TEST(Memo, RefusesIndicesBeyondTheLimit) {
  Memo<int> memo(5000);
  EXPECT_TRUE(memo.put(5000, 1));
  EXPECT_FALSE(memo.put(5001, 1));
  EXPECT_FALSE(memo.put(0xFFFFFFFF, 1));
  EXPECT_FALSE(memo.put(~std::uint64_t{0}, 1));
  EXPECT_EQ(memo.get(5001), nullptr);
  EXPECT_EQ(memo.get(~std::uint64_t{0}), nullptr);
}

TEST(Memo, TakesSmallIndicesWhateverTheLimit) {
  Memo<int> memo(10);
  EXPECT_TRUE(memo.put(4096, 1));
  EXPECT_FALSE(memo.put(4097, 1));
}

}  // namespace
}  // namespace zerocopy::test::globals_test
