//! A block as it is written to a lane, and as the live table has it.

/// Totals of the allocator after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Bytes handed out.
    pub allocated: u64,
    /// Bytes held from the device.
    pub reserved: u64,
}

/// A block that is handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Device address.
    pub address: u64,
    /// Bytes, rounded as the allocator rounds.
    pub size: u64,
    /// Bytes asked for; 0 is unknown.
    pub requested: u64,
    /// Stream and pool, or origin: see [`crate::event::Event::owner`].
    pub owner: u16,
    /// Id of the stack.
    pub stack: u32,
}

/// A block of the live table, as its writer asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Size of the block, in bytes.
    pub size: u64,
    /// Device of the block.
    pub device: u8,
    /// Stream and pool, or origin.
    pub owner: u16,
}
