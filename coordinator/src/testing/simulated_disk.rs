//! The disk of a simulated coordinator's machine.

use crate::store::testing::simulated::disk::SimulatedDisk;

/// The disk of its machine. Clones are the same disk; it outlives coordinators.
#[derive(Clone, Debug)]
pub struct Disk(pub(crate) SimulatedDisk);

impl Disk {
    /// An empty disk that fails as this seed says.
    pub fn new(seed: u64) -> Self {
        Self(SimulatedDisk::new(seed))
    }

    /// The machine is gone, with what was not synced. For a coordinator that was just dropped.
    pub fn power_loss(&self) {
        self.0.power_loss();
    }

    /// The process is gone; what it wrote stays.
    pub fn kill(&self) {
        self.0.kill();
    }

    /// Bounds the bytes of all files together; `None` removes the bound.
    pub fn set_room(&self, bytes: Option<u64>) {
        self.0.set_room(bytes);
    }

    /// The next `count` writes fail.
    pub fn fail_writes(&self, count: u64) {
        self.0.fail_writes(count);
    }

    /// The next `count` syncs fail.
    pub fn fail_syncs(&self, count: u64) {
        self.0.fail_syncs(count);
    }

    /// The process dies, or the power fails, in the middle of the operation that comes after
    /// `operations` more. [`Self::crashes`] counts it.
    pub fn crash_after(&self, operations: u64, is_power_loss: bool) {
        self.0.crash_after(Some(operations), is_power_loss);
    }

    /// Takes an ordered crash back.
    pub fn crash_never(&self) {
        self.0.crash_after(None, false);
    }

    /// Crashes so far: those at once, and those in the middle of an operation.
    pub fn crashes(&self) -> u64 {
        let counts = self.0.counts();
        counts.kills + counts.power_losses
    }

    /// Times that the index came back older, empty or unreadable.
    pub fn index_losses(&self) -> u64 {
        self.0.counts().index_losses
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.0.used_bytes()
    }
}
