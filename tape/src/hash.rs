//! A hash that is the same on every machine: FNV-1a of 64 bits. It tells names apart and keeps
//! nothing secret.

/// The hash of these bytes.
pub fn fnv_1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    const START: u64 = 0xcbf2_9ce4_8422_2325;
    const FACTOR: u64 = 0x0100_0000_01b3;
    bytes.into_iter().fold(START, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FACTOR))
}
