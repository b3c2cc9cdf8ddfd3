//! All opcodes of the pickle format, by the names of `pickletools`, and how a reader handles each.
//!
//! A pickle is a program for a small stack machine. Most of its opcodes only put data together; a
//! few look up names and call them, and those can do anything at all. The table here classifies
//! them. [`super::reader`] carries them out.

macro_rules! opcodes {
    ($($(#[doc = $doc:literal])? $name:ident = $byte:literal, $kind:expr;)*) => {
        $(
            #[doc = concat!("The opcode ", stringify!($name), ".", $(" ", $doc)?)]
            pub const $name: u8 = $byte;
        )*

        /// Name and kind of each opcode.
        const TABLE: &[(u8, &str, Kind)] = &[$(($byte, stringify!($name), $kind)),*];
    };
}

/// Class of an opcode for a reader of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data, with this number of bytes of operand.
    Fixed(u8),
    /// Data, with a count in this number of bytes, and that many bytes after it.
    Counted(u8),
    /// Data, with a decimal number and a line feed.
    Line,
    /// Looks up, makes or calls objects that the file names.
    Code,
    /// Refers to data outside of the file.
    OutOfBand,
    /// Data as text, which protocol 2 and later do not write.
    OldText,
}

opcodes! {
    PROTO = 0x80, Kind::Fixed(1);
    FRAME = 0x95, Kind::Fixed(8);
    STOP = b'.', Kind::Fixed(0);
    MARK = b'(', Kind::Fixed(0);
    POP = b'0', Kind::Fixed(0);
    POP_MARK = b'1', Kind::Fixed(0);
    DUP = b'2', Kind::Fixed(0);
    NONE = b'N', Kind::Fixed(0);
    NEWTRUE = 0x88, Kind::Fixed(0);
    NEWFALSE = 0x89, Kind::Fixed(0);
    /// Signed, 32 bits.
    BININT = b'J', Kind::Fixed(4);
    /// Unsigned, 8 bits.
    BININT1 = b'K', Kind::Fixed(1);
    /// Unsigned, 16 bits.
    BININT2 = b'M', Kind::Fixed(2);
    /// Two's complement, little-endian, up to 255 bytes.
    LONG1 = 0x8a, Kind::Counted(1);
    /// Like LONG1, with a signed count of 32 bits.
    LONG4 = 0x8b, Kind::Counted(4);
    /// The only number that is big-endian.
    BINFLOAT = b'G', Kind::Fixed(8);
    SHORT_BINUNICODE = 0x8c, Kind::Counted(1);
    BINUNICODE = b'X', Kind::Counted(4);
    BINUNICODE8 = 0x8d, Kind::Counted(8);
    /// The text of Python 2.
    SHORT_BINSTRING = b'U', Kind::Counted(1);
    /// The text of Python 2, with a signed count.
    BINSTRING = b'T', Kind::Counted(4);
    SHORT_BINBYTES = b'C', Kind::Counted(1);
    BINBYTES = b'B', Kind::Counted(4);
    BINBYTES8 = 0x8e, Kind::Counted(8);
    BYTEARRAY8 = 0x96, Kind::Counted(8);
    EMPTY_LIST = b']', Kind::Fixed(0);
    APPEND = b'a', Kind::Fixed(0);
    /// Appends everything after the mark to the list below it.
    APPENDS = b'e', Kind::Fixed(0);
    LIST = b'l', Kind::Fixed(0);
    EMPTY_TUPLE = b')', Kind::Fixed(0);
    TUPLE = b't', Kind::Fixed(0);
    TUPLE1 = 0x85, Kind::Fixed(0);
    TUPLE2 = 0x86, Kind::Fixed(0);
    TUPLE3 = 0x87, Kind::Fixed(0);
    EMPTY_DICT = b'}', Kind::Fixed(0);
    SETITEM = b's', Kind::Fixed(0);
    /// Sets all pairs after the mark in the dictionary below it.
    SETITEMS = b'u', Kind::Fixed(0);
    DICT = b'd', Kind::Fixed(0);
    EMPTY_SET = 0x8f, Kind::Fixed(0);
    ADDITEMS = 0x90, Kind::Fixed(0);
    FROZENSET = 0x91, Kind::Fixed(0);
    GET = b'g', Kind::Line;
    BINGET = b'h', Kind::Fixed(1);
    LONG_BINGET = b'j', Kind::Fixed(4);
    PUT = b'p', Kind::Line;
    BINPUT = b'q', Kind::Fixed(1);
    LONG_BINPUT = b'r', Kind::Fixed(4);
    /// Stores the topmost value under the next number.
    MEMOIZE = 0x94, Kind::Fixed(0);
    GLOBAL = b'c', Kind::Code;
    STACK_GLOBAL = 0x93, Kind::Code;
    REDUCE = b'R', Kind::Code;
    BUILD = b'b', Kind::Code;
    INST = b'i', Kind::Code;
    OBJ = b'o', Kind::Code;
    NEWOBJ = 0x81, Kind::Code;
    NEWOBJ_EX = 0x92, Kind::Code;
    EXT1 = 0x82, Kind::Code;
    EXT2 = 0x83, Kind::Code;
    EXT4 = 0x84, Kind::Code;
    PERSID = b'P', Kind::Code;
    BINPERSID = b'Q', Kind::Code;
    NEXT_BUFFER = 0x97, Kind::OutOfBand;
    READONLY_BUFFER = 0x98, Kind::OutOfBand;
    INT = b'I', Kind::OldText;
    LONG = b'L', Kind::OldText;
    FLOAT = b'F', Kind::OldText;
    STRING = b'S', Kind::OldText;
    UNICODE = b'V', Kind::OldText;
}

/// Flag in [`EXTENTS`]: the operand ends with a count, and that many bytes follow.
pub(crate) const COUNTED: u8 = 0x40;

/// Flag in [`EXTENTS`]: the operand ends with a line feed.
pub(crate) const LINE: u8 = 0x80;

/// By opcode, its bytes up to the end of a fixed operand or of a count, and how it goes on; 0 is an
/// opcode that is refused. It is read for every opcode, hence not [`TABLE`].
pub(crate) static EXTENTS: [u8; 256] = extents();

const fn extents() -> [u8; 256] {
    let mut extents = [0; 256];
    let mut at = 0;
    while at < TABLE.len() {
        let (byte, _, kind) = TABLE[at];
        extents[byte as usize] = match kind {
            Kind::Fixed(bytes) => 1 + bytes,
            Kind::Counted(bytes) => COUNTED | (1 + bytes),
            Kind::Line => LINE | 1,
            Kind::Code | Kind::OutOfBand | Kind::OldText => 0,
        };
        at += 1;
    }
    extents
}

/// Name and kind of the opcode with this byte, if there is one.
pub fn look_up(byte: u8) -> Option<(&'static str, Kind)> {
    TABLE.iter().find(|entry| entry.0 == byte).map(|entry| (entry.1, entry.2))
}

/// Every opcode there is: byte, name and kind.
pub fn all() -> impl Iterator<Item = (u8, &'static str, Kind)> {
    TABLE.iter().copied()
}

/// Name of an opcode for a message; `?` for a byte that is no opcode.
pub(crate) fn name(byte: u8) -> &'static str {
    look_up(byte).map_or("?", |(name, _)| name)
}
