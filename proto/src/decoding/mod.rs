//! Decodes messages of peers with a memory bound that is known before the memory is taken.
//!
//! A few bytes of protobuf can decode to a hundred times as many: an empty sub-message of two bytes
//! is a struct of two hundred. [`Encoded::cost`] adds up in one pass over the bytes, which
//! allocates nothing, what prost may allocate. The receiver reserves that, or refuses the message,
//! and only then decodes it. The meaning of a message's numbers is not checked here.

mod encoded;
pub(crate) mod measure;

pub use encoded::{Encoded, Measured};
pub use measure::{Field, NotDecoded, Shape, Shaped};

use crate::v1;

include!(concat!(env!("OUT_DIR"), "/shapes.rs"));
