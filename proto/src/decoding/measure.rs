//! The most memory that decoding a message may take, from its bytes and the [`Shape`] of its type.
//!
//! `build.rs` makes the shapes of the `.proto` file. The bound follows from how prost decodes:
//!
//! - A list grows by doubling from four elements (one, if they have more than 1 KiB), and while it
//!   grows the old one is there, too. Its peak is four elements for one, and at most three elements
//!   for each further one.
//! - A text takes at least eight bytes. One that comes again grows to at most twice its length,
//!   with the old one beside it: the peak is at most twice the lengths of all.
//! - A single sub-message lies inside its parent; one that comes again is merged: its lists go on.
//! - Unknown fields are skipped. Groups, which are never sent, are refused.
//!
//! The message itself, which the caller has, is not counted.

/// Bytes of an element of a list of texts.
const TEXT_BYTES: usize = size_of::<String>();

/// Smallest capacity of a text.
const TEXT_BYTES_MIN: usize = 8;

/// Allocations of decoding a message of one type.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Size of the decoded struct, without heap memory.
    pub bytes: usize,
    /// Fields by their number; 0 is none.
    pub fields: &'static [Field],
}

/// Allocations of decoding a field.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    /// Nothing: a number, or no known field.
    Flat,
    /// A text, or bytes.
    Text,
    /// A list of texts.
    Texts,
    /// A list of numbers: the size of a decoded one, and of an encoded one at least.
    Numbers(usize, usize),
    /// A message inside this one.
    Message(&'static Shape),
    /// A list of messages.
    Messages(&'static Shape),
}

/// A message with a known shape.
pub trait Shaped {
    /// Allocations of decoding the message.
    const SHAPE: &'static Shape;
}

/// Why a message is not decoded.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NotDecoded {
    /// The message would take too much memory.
    #[error("decoded it would take more than {bytes_max} bytes of memory")]
    TooLarge {
        /// The limit.
        bytes_max: u64,
    },
    /// The bytes are not protobuf.
    #[error("it is damaged")]
    Malformed,
    /// A field has another type, or a text is not UTF-8.
    #[error("it is damaged: {0}")]
    Message(#[from] prost::DecodeError),
}

/// Most bytes that prost has allocated at any time while it decodes `wire`.
///
/// # Errors
/// They are more than `bytes_max`, or the message is damaged.
pub(crate) fn bytes(wire: &[u8], shape: &Shape, bytes_max: u64) -> Result<u64, NotDecoded> {
    let mut sum = Sum { bytes: 0, bytes_max };
    sum.message(wire, shape)?;
    Ok(sum.bytes)
}

struct Sum {
    bytes: u64,
    bytes_max: u64,
}

impl Sum {
    fn add(&mut self, bytes: usize) -> Result<(), NotDecoded> {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        let bytes_max = self.bytes_max;
        (self.bytes <= bytes_max).then_some(()).ok_or(NotDecoded::TooLarge { bytes_max })
    }

    /// Adds the memory of a message's fields. Recurses as deep as shapes are nested, not messages.
    fn message(&mut self, mut wire: &[u8], shape: &Shape) -> Result<(), NotDecoded> {
        // Of each field a bit: its list has an element.
        let mut begun = 0_u64;
        while !wire.is_empty() {
            let (number, value) = next(&mut wire)?;
            let field = shape.fields.get(number).unwrap_or(&Field::Flat);
            let bytes = value.bytes();
            let (element, count) = match field {
                Field::Numbers(decoded, encoded) => (*decoded, value.count(*encoded)),
                Field::Texts => (TEXT_BYTES, 1),
                Field::Messages(of) => (of.bytes, 1),
                Field::Flat | Field::Text | Field::Message(_) => (0, 0),
            };
            if count > 0 {
                let first = usize::from(begun & 1 << number == 0);
                begun |= 1 << number;
                self.add(element.saturating_mul(count.saturating_mul(3).saturating_add(first)))?;
            }
            match field {
                Field::Text | Field::Texts if !bytes.is_empty() => {
                    self.add(2 * bytes.len().max(TEXT_BYTES_MIN))?;
                }
                Field::Message(of) | Field::Messages(of) => self.message(bytes, of)?,
                Field::Flat | Field::Numbers(..) | Field::Text | Field::Texts => {}
            }
        }
        Ok(())
    }
}

/// A value on the wire.
#[derive(Clone, Copy)]
enum Value<'a> {
    /// A number.
    Number,
    /// A text, a message or a list of numbers.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn bytes(self) -> &'a [u8] {
        match self {
            Self::Number => &[],
            Self::Bytes(bytes) => bytes,
        }
    }

    /// Numbers in it that take at least this many bytes each. The last byte of a variable number
    /// has no upper bit.
    fn count(self, encoded_bytes: usize) -> usize {
        match self {
            Self::Number => 1,
            Self::Bytes(bytes) if encoded_bytes > 1 => bytes.len() / encoded_bytes,
            Self::Bytes(bytes) => bytes.iter().filter(|byte| **byte < 0x80).count(),
        }
    }
}

/// The next field: its number and value.
fn next<'a>(wire: &mut &'a [u8]) -> Result<(usize, Value<'a>), NotDecoded> {
    let key = u32::try_from(varint(wire)?).map_err(|_| NotDecoded::Malformed)?;
    let value = match key & 7 {
        0 => varint(wire).map(|_| Value::Number)?,
        1 => take(wire, 8).map(|_| Value::Number)?,
        5 => take(wire, 4).map(|_| Value::Number)?,
        2 => {
            let length = varint(wire)?;
            Value::Bytes(take(wire, usize::try_from(length).unwrap_or(usize::MAX))?)
        }
        _ => return Err(NotDecoded::Malformed),
    };
    Ok(((key >> 3) as usize, value))
}

fn take<'a>(wire: &mut &'a [u8], length: usize) -> Result<&'a [u8], NotDecoded> {
    wire.split_off(..length).ok_or(NotDecoded::Malformed)
}

/// A number of seven bits a byte, at most 64 bits.
fn varint(wire: &mut &[u8]) -> Result<u64, NotDecoded> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *wire.split_off_first().ok_or(NotDecoded::Malformed)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            let is_too_long = shift == 63 && byte > 1;
            return if is_too_long { Err(NotDecoded::Malformed) } else { Ok(number) };
        }
    }
    Err(NotDecoded::Malformed)
}
