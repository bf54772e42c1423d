//! An open device and its protection domain.

use std::{
    ffi::CStr,
    io,
    mem::{MaybeUninit, zeroed},
    ptr,
};

use rdma_sys as ffi;

use super::{check, not_null, queue_pair::ReadDepths};

/// An open device and its protection domain: regions and queue pairs of one domain can be used together.
pub struct ProtectionDomain {
    context: *mut ffi::ibv_context,
    pub(super) domain: *mut ffi::ibv_pd,
}

// SAFETY: the API of verbs promises that every thread may use its objects (ibv_open_device(3) and the manual of
// libibverbs).
#[allow(unsafe_code)]
unsafe impl Send for ProtectionDomain {}
// SAFETY: the API of verbs promises the same for several threads at once.
#[allow(unsafe_code)]
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Opens the device `name`, such as `mlx5_0`.
    ///
    /// # Errors
    ///
    /// There is no such device ([`io::ErrorKind::NotFound`]), or this user may not open it.
    #[allow(unsafe_code)]
    pub fn open(name: &str) -> io::Result<Self> {
        let context = open_device(name)?;
        // SAFETY: the context is open.
        let domain = not_null(unsafe { ffi::ibv_alloc_pd(context) });
        domain
            .map(|domain| Self { context, domain })
            .inspect_err(|_| {
                // SAFETY: nothing else has this context.
                unsafe { ffi::ibv_close_device(context) };
            })
    }

    pub(super) fn context(&self) -> *mut ffi::ibv_context {
        self.context
    }

    /// Returns an entry of the GID table of a port.
    ///
    /// # Errors
    ///
    /// There is no such entry.
    #[allow(unsafe_code)]
    pub(crate) fn gid(&self, port: u8, index: usize) -> io::Result<[u8; 16]> {
        let index = i32::try_from(index).map_err(io::Error::other)?;
        let mut gid = ffi::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open, and `gid` is memory for one entry.
        check(unsafe { ffi::ibv_query_gid(self.context, port, index, &raw mut gid) })?;
        // SAFETY: both fields of the union are sixteen bytes, all of which are initialised.
        Ok(unsafe { gid.raw })
    }

    /// Returns the local identifier of a port, which InfiniBand needs.
    ///
    /// # Errors
    ///
    /// There is no such port.
    #[allow(unsafe_code)]
    pub(crate) fn lid(&self, port: u8) -> io::Result<u16> {
        // SAFETY: integers only, for which zero is a value.
        let mut attributes: ffi::ibv_port_attr = unsafe { zeroed() };
        // SAFETY: the context is open. The function writes the older form of the attributes, which is a prefix of this
        // form.
        check(unsafe { ffi::ibv_query_port(self.context, port, (&raw mut attributes).cast()) })?;
        Ok(attributes.lid)
    }

    /// Returns the most RDMA READs that a queue pair of the device can have under way at once.
    ///
    /// # Errors
    ///
    /// Those of the device.
    #[allow(unsafe_code)]
    pub(crate) fn read_depths(&self) -> io::Result<ReadDepths> {
        // SAFETY: integers, arrays of integers and plain enumerations of C, for which zero is a value.
        let mut attributes: ffi::ibv_device_attr = unsafe { zeroed() };
        // SAFETY: the context is open, and `attributes` is memory for the answer.
        check(unsafe { ffi::ibv_query_device(self.context, &raw mut attributes) })?;
        let depth = |most: i32| u8::try_from(most.clamp(0, i32::from(u8::MAX))).unwrap_or(0);
        Ok(ReadDepths {
            begun: depth(attributes.max_qp_init_rd_atom),
            answered: depth(attributes.max_qp_rd_atom),
        })
    }
}

impl Drop for ProtectionDomain {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: all regions, queues and queue pairs own the domain, so none is left.
        unsafe {
            ffi::ibv_dealloc_pd(self.domain);
            ffi::ibv_close_device(self.context);
        }
    }
}

#[allow(unsafe_code)]
fn open_device(name: &str) -> io::Result<*mut ffi::ibv_context> {
    let mut count = MaybeUninit::zeroed();
    // SAFETY: `count` is memory for one integer.
    let list = not_null(unsafe { ffi::ibv_get_device_list(count.as_mut_ptr()) })?;
    // SAFETY: the call has written it, and zero was valid before.
    let count = usize::try_from(unsafe { count.assume_init() }).unwrap_or(0);
    let device = (0..count)
        // SAFETY: the list has `count` entries until it is freed.
        .map(|at| unsafe { *list.add(at) })
        .find(|device| {
            // SAFETY: the entries are devices, and a name is a string that ends with zero.
            let found = unsafe { CStr::from_ptr(ffi::ibv_get_device_name(*device)) };
            found.to_str() == Ok(name)
        });
    // SAFETY: the device is in the list, which is not freed yet.
    let context = device.map_or(ptr::null_mut(), |device| unsafe {
        ffi::ibv_open_device(device)
    });
    let opened = match device {
        Some(_) => not_null(context),
        None => Err(io::ErrorKind::NotFound.into()),
    };
    // SAFETY: the list came from `ibv_get_device_list`. An open device does not need it.
    unsafe { ffi::ibv_free_device_list(list) };
    opened
}
