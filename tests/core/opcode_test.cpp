#include "pickle/opcode.h"

#include "support.h"

namespace zerocopy::test::opcode_test {
namespace {

Instruction first(std::string_view bytes) {
  const Region region = region_of(bytes);
  Decoder decoder(region.bytes());
  Instruction instruction;
  decoder.next(instruction);
  return instruction;
}

void decode(std::string_view bytes) {
  const Region region = region_of(bytes);
  Decoder decoder(region.bytes());
  Instruction instruction;
  do decoder.next(instruction);
  while (instruction.opcode != Opcode::stop);
}

TEST(Decoder, Numbers) {
  EXPECT_EQ(first("K\xff").number, 255);
  EXPECT_EQ(first("M\xff\xff").number, 65535);
  EXPECT_EQ(first("J\xff\xff\xff\xff").number, -1);
  EXPECT_EQ(first("J\xff\xff\xff\x7f").number, INT32_MAX);
  EXPECT_EQ(first("j\xff\xff\xff\xff").number, 0xFFFFFFFF);
  EXPECT_EQ(first("G\x40\x09\x21\xfb\x54\x44\x2d\x18").real, 3.141592653589793);
}

TEST(Decoder, BytesOfEachLength) {
  // Checks sizes only, since the bytes are freed with the region.
  EXPECT_EQ(first("U\3abc").bytes.size(), 3U);
  EXPECT_EQ(first("X\3\0\0\0abc"sv).bytes.size(), 3U);
  EXPECT_EQ(first("\x8d\3\0\0\0\0\0\0\0abc"sv).bytes.size(), 3U);
  EXPECT_EQ(first("T\3\0\0\0abc"sv).bytes.size(), 3U);
  EXPECT_EQ(first("cone\ntwo!\n").more.size(), 4U);
  EXPECT_EQ(first("I12\n").bytes.size(), 2U);
}

TEST(Decoder, LengthsPastTheEnd) {
  for (const auto bad : {""sv,
                         "K"sv,
                         "M\1"sv,
                         "J\1\2\3"sv,
                         "G\1\2\3\4\5\6\7"sv,
                         "U"sv,
                         "U\1"sv,
                         "X\1\0\0\0"sv,
                         "X\0\0\0\x80xx"sv,
                         "X\xff\xff\xff\xff"sv,
                         "B\xff\xff\xff\xff"sv,
                         "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"sv,
                         "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"sv,
                         "\x96\0\0\0\0\0\1\0\0x"sv,
                         "\x8a\xff"sv,
                         "\x8b\xff\xff\xff\x7f"sv,
                         "\x8b\xff\xff\xff\xff"sv,
                         "T\xff\xff\xff\xff"sv,
                         "I12"sv,
                         "cmodule\nname"sv,
                         "cmodule"sv,
                         "\x80"sv}) {
    EXPECT_THROW(first(bad), FormatError) << quote(bad);
  }
}

TEST(Decoder, UndefinedOpcodes) {
  const std::string defined =
      "(.012FIJKLMNPQRSTUVXabc}de]ghijloprst)uqG\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b"
      "BC\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98";
  for (int i = 0; i < 256; ++i) {
    const char opcode = static_cast<char>(i);
    const bool known = defined.find(opcode) != defined.npos;
    const std::string message = message_of<FormatError>([&] {
      first(std::string(1, opcode));  // a known opcode has no argument, or is truncated
      throw FormatError("truncated");
    });
    EXPECT_EQ(message.find("no opcode") == message.npos, known) << i;
  }
}

TEST(Decoder, Frames) {
  EXPECT_NO_THROW(decode("\x95\2\0\0\0\0\0\0\0N."sv));
  EXPECT_NO_THROW(decode("\x95\1\0\0\0\0\0\0\0N."sv));
  EXPECT_NO_THROW(decode("\x95\0\0\0\0\0\0\0\0N."sv));
  EXPECT_NO_THROW(decode("\x95\1\0\0\0\0\0\0\0N\x95\1\0\0\0\0\0\0\0."sv));
  EXPECT_THROW(decode("\x95\3\0\0\0\0\0\0\0N."sv), FormatError);
  EXPECT_THROW(decode("\x95\xff\xff\xff\xff\xff\xff\xff\xffN."sv), FormatError);
  // An instruction crosses the frame's end.
  EXPECT_THROW(decode("\x95\1\0\0\0\0\0\0\0K\1."sv), FormatError);
  // A frame in a frame.
  EXPECT_THROW(decode("\x95\xb\0\0\0\0\0\0\0\x95\1\0\0\0\0\0\0\0N."sv), FormatError);
}

TEST(Decoder, EveryCutOfEveryOpcode) {
  const std::string all =
      "\x80\4K\1M\1\2J\1\2\3\4G\1\2\3\4\5\6\7\x8U\1aX\1\0\0\0a\x8c\1a\x8d\1\0\0\0\0\0\0\0aC\1aB\1\0\0\0a"
      "\x8e\1\0\0\0\0\0\0\0a\x96\1\0\0\0\0\0\0\0a\x8a\1a\x8b\1\0\0\0aT\1\0\0\0acone\ntwo\nI1\nq\1r\1\0\0\0N."s;
  refuses_every_cut<FormatError>(all, decode);
}

}  // namespace
}  // namespace zerocopy::test::opcode_test
