//! [`Encoded`]: a message as it came, and the codec of gRPC that leaves it so.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::{Buf as _, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstEncoder};

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

/// The codec of a server that decodes messages itself.
#[derive(Debug)]
pub struct EncodedCodec<T, M>(PhantomData<(T, M)>);

/// Takes messages as they come.
#[derive(Debug)]
pub struct EncodedDecoder<M>(PhantomData<M>);

impl<T, M> Default for EncodedCodec<T, M> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, M> Codec for EncodedCodec<T, M>
where
    T: Message + Send + 'static,
    M: Message + Shaped + Default + Send + 'static,
{
    type Encode = T;
    type Decode = Encoded<M>;
    type Encoder = ProstEncoder<T>;
    type Decoder = EncodedDecoder<M>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, M>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        EncodedDecoder(PhantomData)
    }
}

impl<M: Message + Shaped + Default> Decoder for EncodedDecoder<M> {
    type Item = Encoded<M>;
    type Error = Status;

    fn decode(&mut self, wire: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let bytes = wire.remaining();
        Ok(Some(Encoded::new(wire.copy_to_bytes(bytes))))
    }
}
