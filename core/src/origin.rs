//! Who takes memory that PyTorch's caching allocator does not, by number on a tape and by name.

/// Where memory outside PyTorch's caching allocator came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Origin {
    /// Not known to this version.
    Unknown = 0,
    /// `cudaMalloc`: PyTorch's own segments, and other users of the runtime.
    CudaMalloc = 1,
    /// `cudaMallocAsync` and its relatives.
    CudaMallocAsync = 2,
    /// `cudaMallocManaged`.
    Managed = 3,
    /// `cudaHostAlloc`, `cudaMallocHost`: pinned host memory.
    HostPinned = 4,
    /// `cudaHostRegister`: host memory pinned after the fact.
    HostRegistered = 5,
    /// PyTorch's CPU tensors.
    CpuTensor = 6,
    /// What NCCL took while a communicator was made, and `ncclMemAlloc`.
    Nccl = 7,
    /// Taken from the driver past every other hook, or for expandable segments of PyTorch.
    DriverVmm = 8,
}

impl Origin {
    /// All that have a name, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::CudaMalloc,
        Self::CudaMallocAsync,
        Self::Managed,
        Self::HostPinned,
        Self::HostRegistered,
        Self::CpuTensor,
        Self::Nccl,
        Self::DriverVmm,
    ];

    /// The origin with this number on a tape.
    pub fn from_number(number: u16) -> Self {
        Self::ALL.into_iter().find(|&each| each as u16 == number).unwrap_or(Self::Unknown)
    }

    /// True when the memory lies on the device.
    pub fn is_on_device(self) -> bool {
        !matches!(self, Self::HostPinned | Self::HostRegistered | Self::CpuTensor | Self::Unknown)
    }

    /// Its name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::CudaMalloc => "cudaMalloc",
            Self::CudaMallocAsync => "cudaMallocAsync",
            Self::Managed => "managed",
            Self::HostPinned => "pinned",
            Self::HostRegistered => "registered",
            Self::CpuTensor => "cpu tensors",
            Self::Nccl => "nccl",
            Self::DriverVmm => "driver",
        }
    }
}
