//! [`Encoded`]: a message as it came.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Bytes;

use super::measure::{self, NotDecoded, Shaped};

/// A message that is not decoded yet.
#[derive(Clone, Debug)]
pub struct Encoded<M> {
    wire: Bytes,
    of: PhantomData<fn() -> M>,
}

impl<M: Message + Shaped + Default> Encoded<M> {
    /// A message from its bytes.
    pub fn new(wire: Bytes) -> Self {
        Self { wire, of: PhantomData }
    }

    /// Measures the memory that decoding the message takes.
    ///
    /// # Errors
    /// Decoded it would take more than `bytes_max`, or it is damaged.
    pub fn measured(self, bytes_max: u64) -> Result<Measured<M>, NotDecoded> {
        let decoded = measure::bytes(&self.wire, M::SHAPE, bytes_max)?;
        let cost_bytes = decoded.saturating_add(self.wire.len() as u64);
        Ok(Measured { wire: self.wire, cost_bytes, of: PhantomData })
    }
}

/// A message that is not decoded yet, whose cost is known and within its bound.
#[derive(Debug)]
pub struct Measured<M> {
    wire: Bytes,
    cost_bytes: u64,
    of: PhantomData<fn() -> M>,
}

impl<M: Message + Default> Measured<M> {
    /// Most bytes that the message takes while it is decoded: as it came, and decoded.
    pub fn cost_bytes(&self) -> u64 {
        self.cost_bytes
    }

    /// The message.
    ///
    /// # Errors
    /// It is damaged.
    pub fn decode(self) -> Result<M, NotDecoded> {
        Ok(M::decode(self.wire)?)
    }
}
