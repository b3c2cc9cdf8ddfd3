//! Origins of memory outside PyTorch's caching allocator, by number on a tape and by name.

use strum::VariantArray;

/// Origin of memory outside PyTorch's caching allocator.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::FromRepr,
    strum::IntoStaticStr,
    VariantArray,
)]
#[repr(u16)]
#[strum(serialize_all = "lowercase")]
pub enum Origin {
    /// Not known to this version.
    Unknown = 0,
    /// `cudaMalloc`: PyTorch's own segments, and other users of the runtime.
    #[strum(serialize = "cudaMalloc")]
    CudaMalloc = 1,
    /// `cudaMallocAsync` and its relatives.
    #[strum(serialize = "cudaMallocAsync")]
    CudaMallocAsync = 2,
    /// `cudaMallocManaged`.
    Managed = 3,
    /// `cudaHostAlloc`, `cudaMallocHost`: pinned host memory.
    #[strum(serialize = "pinned")]
    HostPinned = 4,
    /// `cudaHostRegister`: host memory pinned after the fact.
    #[strum(serialize = "registered")]
    HostRegistered = 5,
    /// PyTorch's CPU tensors.
    #[strum(serialize = "cpu tensors")]
    CpuTensor = 6,
    /// Memory taken by NCCL while a communicator was made, and `ncclMemAlloc`.
    #[strum(serialize = "NCCL")]
    Nccl = 7,
    /// Taken from the driver past every other hook, or for expandable segments of PyTorch.
    #[strum(serialize = "driver")]
    DriverVmm = 8,
}

impl Origin {
    /// All named origins, in the order of their numbers.
    pub const ALL: &'static [Self] = Self::VARIANTS.split_at(1).1;

    /// The origin with this number on a tape.
    pub fn from_number(number: u16) -> Self {
        Self::from_repr(number).unwrap_or(Self::Unknown)
    }

    /// True when the memory lies on the device.
    pub fn is_on_device(self) -> bool {
        !matches!(self, Self::HostPinned | Self::HostRegistered | Self::CpuTensor | Self::Unknown)
    }

    /// Name of the origin in output.
    pub fn name(self) -> &'static str {
        self.into()
    }
}
