#include "pickle/machine.h"
#include "support.h"

// The native calls and persistent ids, tested through the machine.
namespace zerocopy::test::rebuild_test {
namespace {

Document read(const std::string& pickle) { return read_pickle(region_of(pickle + ".")); }

std::string text(std::string_view content) { return "X" + u32(content.size()) + std::string(content); }
std::string number(std::int64_t value) { return "\x8a\x8" + little(value); }
std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
std::string tuple(const std::string& items) { return "(" + items + "t"; }
std::string call(const std::string& function, const std::string& arguments) {
  return function + tuple(arguments) + "R";
}
std::string id(const std::string& type, const std::string& key, const std::string& location,
               const std::string& numel) {
  return tuple(text("storage") + type + key + location + numel) + "Q";
}
std::string storage(const std::string& kind = "FloatStorage", std::int64_t numel = 16,
                    const std::string& key = "0") {
  return id(global("torch", kind), text(key), text("cpu"), number(numel));
}

const std::string kHooks = call(global("collections", "OrderedDict"), "");

struct TensorCall {
  std::string over = storage();
  std::string offset = number(0);
  std::string size = tuple(number(16));
  std::string stride = tuple(number(1));
  std::string grad = "\x89";
  std::string hooks = kHooks;
  std::string more;

  std::string v2() const {
    return call(global("torch._utils", "_rebuild_tensor_v2"),
                over + offset + size + stride + grad + hooks + more);
  }
  std::string v3(const std::string& dtype) const {
    return call(global("torch._utils", "_rebuild_tensor_v3"),
                over + offset + size + stride + grad + hooks + global("torch", dtype) + more);
  }
};

template <typename Change>
std::string tensor(Change change) {
  TensorCall made;
  change(made);
  return made.v2();
}

#define EXPECT_FORMAT(pickle) EXPECT_THROW(read(pickle), FormatError)
#define EXPECT_REFUSED(pickle) EXPECT_THROW(read(pickle), RefusedError)
#define EXPECT_UNSUPPORTED(pickle) EXPECT_THROW(read(pickle), UnsupportedError)

TEST(Rebuild, Tensors) {
  EXPECT_EQ(read(TensorCall().v2()).root.kind(), Kind::tensor);
  EXPECT_EQ(read(TensorCall().v3("int32")).root.as<Tensor>().dtype, dtype_by_name("int32"));
  EXPECT_TRUE(read(tensor([](auto& t) { t.grad = "\x88"; })).root.as<Tensor>().requires_grad);
  EXPECT_NO_THROW(read(tensor([](auto& t) { t.hooks = "N"; })));
  EXPECT_NO_THROW(read(tensor([](auto& t) { t.more = "N"; })));
  EXPECT_NO_THROW(read(tensor([](auto& t) { t.more = "}"; })));
  EXPECT_NO_THROW(read(tensor([](auto& t) { t.size = call(global("torch", "Size"), t.size); })));
  EXPECT_NO_THROW(read(call(global("torch._utils", "_rebuild_tensor"),
                            storage() + number(0) + tuple(number(16)) + tuple(number(1)))));
}

TEST(Rebuild, TensorArguments) {
  for (const std::string& bad :
       {"N"s, "K\1"s, "]"s, "}"s, ")"s, text("x"), "G\0\0\0\0\0\0\0\0"s, TensorCall().v2()}) {
    EXPECT_FORMAT(tensor([&](auto& t) { t.over = bad; }));
    if (bad != "K\1") {
      EXPECT_FORMAT(tensor([&](auto& t) { t.offset = bad; }));
    }
    EXPECT_FORMAT(tensor([&](auto& t) { t.size = bad; }));
    EXPECT_FORMAT(tensor([&](auto& t) { t.stride = bad; }));
    EXPECT_FORMAT(tensor([&](auto& t) { t.grad = bad; }));
    EXPECT_FORMAT(tensor([&](auto& t) { t.size = tuple(bad == "K\1" ? "\x88" : bad); }));
  }
  EXPECT_FORMAT(tensor([](auto& t) { t.more = "NN"; }));
  EXPECT_FORMAT(tensor([](auto& t) { t.hooks = ""; }));
  EXPECT_FORMAT(tensor([](auto& t) { t.more = "]"; }));
  EXPECT_FORMAT(tensor([](auto& t) { t.more = "}" + text("conj") + "K\1s"; }));
  EXPECT_UNSUPPORTED(tensor([](auto& t) { t.more = "}" + text("other") + "\x88s"; }));
  EXPECT_UNSUPPORTED(tensor([](auto& t) { t.more = "}K\1\x88s"; }));
}

TEST(Rebuild, ConjugateOfRealNumbers) {
  const std::string conj = "}" + text("conj") + "\x88s";
  EXPECT_FORMAT(tensor([&](auto& t) { t.more = conj; }));
  EXPECT_NO_THROW(read(tensor([&](auto& t) {
    t.over = storage("ComplexFloatStorage");
    t.more = conj;
  })));
}

TEST(Rebuild, Hooks) {
  const std::string global_value = global("collections", "OrderedDict");
  EXPECT_REFUSED(tensor([&](auto& t) { t.hooks = kHooks + "K\1" + global_value + "s"; }));
  EXPECT_REFUSED(tensor([&](auto& t) { t.hooks = kHooks + "}" + text("x") + "Nsb"; }));
  EXPECT_REFUSED(tensor([&](auto& t) { t.hooks = global_value; }));
  EXPECT_REFUSED(tensor([&](auto& t) { t.hooks = "]"; }));
}

TEST(Rebuild, Geometry) {
  EXPECT_FORMAT(tensor([](auto& t) { t.offset = number(1); }));
  EXPECT_FORMAT(tensor([](auto& t) { t.size = tuple(number(17)); }));
  EXPECT_FORMAT(tensor([](auto& t) { t.stride = tuple(number(INT64_MAX)); }));
  EXPECT_FORMAT(tensor([](auto& t) { t.offset = number(INT64_MIN); }));
  EXPECT_FORMAT(tensor([](auto& t) { t.size = tuple(number(16) + number(1)); }));
  EXPECT_FORMAT(tensor([](auto& t) { t.offset = "\x8a\x9" + std::string(9, '\1'); }));
  std::string ones;
  for (int i = 0; i < 65; ++i) ones += number(1);
  EXPECT_FORMAT(tensor([&](auto& t) { t.size = t.stride = tuple(ones); }));
  EXPECT_FORMAT(TensorCall().v3("float64"));
  EXPECT_FORMAT(TensorCall().v3("qint8"));
  EXPECT_FORMAT(tensor([](auto& t) { t.over = storage("QInt8Storage", 64); }));
}

TEST(Rebuild, GradOnIntegers) {
  EXPECT_FORMAT(tensor([](auto& t) {
    t.over = storage("IntStorage");
    t.grad = "\x88";
  }));
  const auto parameter = [](const std::string& data, const std::string& grad) {
    return call(global("torch._utils", "_rebuild_parameter"), data + grad + kHooks);
  };
  EXPECT_NO_THROW(read(parameter(TensorCall().v2(), "\x88")));
  EXPECT_FORMAT(parameter(tensor([](auto& t) { t.over = storage("IntStorage"); }), "\x88"));
  EXPECT_FORMAT(parameter("N", "\x88"));
  EXPECT_FORMAT(parameter(storage(), "\x88"));
  EXPECT_FORMAT(parameter(TensorCall().v2(), "K\1"));
}

TEST(PersistentId, OneStorageAKey) {
  const Document document = read(tuple(storage() + storage() + storage("IntStorage", 4, "1")));
  EXPECT_EQ(document.storages.size(), 2U);
  const auto& items = document.root.as<Sequence>().items;
  EXPECT_EQ(&items[0].node(), &items[1].node());
  EXPECT_FORMAT(tuple(storage() + storage("IntStorage")));
  EXPECT_FORMAT(tuple(storage() + storage("FloatStorage", 8)));
  EXPECT_FORMAT(tuple(storage() + storage("FloatStorage", 32)));
  EXPECT_FORMAT(tuple(storage() + id(global("torch", "FloatStorage"), text("0"), text("cuda"), number(16))));
}

TEST(PersistentId, Wrong) {
  const std::string floats = global("torch", "FloatStorage");
  const auto ids = {text("storage"),
                    "K\0"s,
                    "N"s,
                    ")"s,
                    "]"s,
                    tuple(text("storage")),
                    tuple(text("other") + floats),
                    tuple(text("storage") + floats + text("0") + text("cpu")),
                    tuple(text("storage") + floats + text("0") + text("cpu") + number(16) + "N"),
                    tuple("K\1" + floats + text("0") + text("cpu") + number(16))};
  for (const std::string& bad : ids) EXPECT_FORMAT(bad + "Q");
  EXPECT_REFUSED(tuple(text("module") + floats + text("file") + text("source")) + "Q");
  for (const std::string& bad : {"N"s, "K\0"s, "]"s, "C\1\x30"s}) {
    EXPECT_FORMAT(id(bad, text("0"), text("cpu"), number(16)));
    EXPECT_FORMAT(id(floats, bad, text("cpu"), number(16)));
    EXPECT_FORMAT(id(floats, text("0"), bad, number(16)));
    if (bad != "K\0"s) {
      EXPECT_FORMAT(id(floats, text("0"), text("cpu"), bad));
    }
  }
  EXPECT_FORMAT(id(global("torch", "float32"), text("0"), text("cpu"), number(16)));
  EXPECT_FORMAT(id(floats, text("0"), text(std::string(1'000'000, 'x')), number(16)));
  for (const std::int64_t numel : {std::int64_t{-1}, INT64_MIN, INT64_MAX, std::int64_t{1} << 62U}) {
    EXPECT_FORMAT(storage("FloatStorage", numel));
  }
}

TEST(PersistentId, MessagesAreShort) {
  const std::string message = message_of<FormatError>([] {
    read(id(global("torch", "FloatStorage"), text("0"), text(std::string(1'000'000, 'x')), number(16)));
  });
  EXPECT_LT(message.size(), 400U);
}

TEST(Calls, PlainTypes) {
  EXPECT_EQ(read(call(global("torch", "Size"), tuple(number(2)))).root.kind(), Kind::size);
  EXPECT_EQ(read(call(global("torch", "device"), text("cuda") + number(1))).root.kind(), Kind::device);
  EXPECT_EQ(read(call(global("collections", "Counter"), "}")).root.kind(), Kind::counter);
  EXPECT_EQ(read(call(global("__builtin__", "set"), "](K\1K\2e")).root.as<Sequence>().items.size(), 2U);
  EXPECT_EQ(read(call(global("builtins", "complex"), "G\0\0\0\0\0\0\0\0G\0\0\0\0\0\0\0\0"s)).root.kind(),
            Kind::complex);
  EXPECT_EQ(read(call(global("collections", "OrderedDict"), "]]K\1aK\2aa")).root.as<Mapping>().items.size(),
            1U);
  const Document bytes = read(call(global("_codecs", "encode"), text("a\xc3\xbf\xc2\x80") + text("latin1")));
  EXPECT_EQ(bytes.root.as<Blob>().bytes.text(), "a\xff\x80");
  EXPECT_EQ(read(call(global("builtins", "bytearray"), "C\2ab")).root.as<Blob>().bytes.text(), "ab");
  EXPECT_EQ(read(call(global("builtins", "bytearray"), "")).root.as<Blob>().bytes.size(), 0U);
}

TEST(Calls, WrongArguments) {
  for (const std::string& bad :
       {number(std::int64_t{1} << 40U), text("abc"), "N"s, "\x88"s, "]]a"s, "}"s + number(1) + "Ns"}) {
    EXPECT_FORMAT(call(global("torch", "Size"), bad));
    EXPECT_FORMAT(call(global("builtins", "bytearray"), bad));
    EXPECT_FORMAT(call(global("builtins", "set"), bad));
    EXPECT_FORMAT(call(global("builtins", "complex"), bad));
    EXPECT_FORMAT(call(global("collections", "OrderedDict"), bad));
    if (bad[0] != '}') {
      EXPECT_FORMAT(call(global("collections", "Counter"), bad));
    }
    if (bad[0] != 'X') {
      EXPECT_FORMAT(call(global("torch", "device"), bad));
    }
    EXPECT_FORMAT(call(global("_codecs", "encode"), bad));
  }
  EXPECT_FORMAT(call(global("torch", "device"), text("cuda") + number(1'000'000)));
  EXPECT_FORMAT(call(global("torch", "device"), text("cuda") + number(-1)));
  EXPECT_FORMAT(call(global("torch", "device"), text(std::string(100'000, 'x'))));
  EXPECT_FORMAT(call(global("_codecs", "encode"), text("\xc4\x80") + text("latin1")));
  EXPECT_FORMAT(call(global("_codecs", "encode"), text("\xe2\x82\xac") + text("latin1")));
  EXPECT_FORMAT(call(global("_codecs", "encode"), text("\xc2\x80") + text("ascii")));
  EXPECT_FORMAT(call(global("_codecs", "encode"), text("\xed\xa0\x80") + text("utf-8")));
  for (const auto* codec : {"idna", "punycode", "zlib", "", "LATIN1", "utf-16"}) {
    EXPECT_REFUSED(call(global("_codecs", "encode"), text("x") + text(codec)));
  }
}

#undef EXPECT_FORMAT
#undef EXPECT_REFUSED
#undef EXPECT_UNSUPPORTED

}  // namespace
}  // namespace zerocopy::test::rebuild_test
