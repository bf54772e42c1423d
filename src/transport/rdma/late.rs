//! libibverbs, loaded when a device is asked for: one executable runs on hosts with and without it.
//!
//! async-rdma and rdma-sys call libibverbs as functions that the linker finds. The programs define these functions here,
//! so the linker needs no library, and each function passes its call on to that of the library. The calls for each
//! frame (`ibv_post_send`, `ibv_post_recv`, `ibv_poll_cq`, `ibv_req_notify_cq`) are not among them: they are inline, and
//! call the driver of the device.
//!
//! Lazy binding (`-z lazy`) is not enough, since the loader still opens the library at the start. A stub in place of the
//! library at link time needs the key `links` in the manifest of rdma-sys, which has none, or settings of cargo that
//! `cargo install` does not read.
//!
//! A function of libibverbs that is missing here makes the executable need the library again. The test
//! `the_programs_start_without_libibverbs` fails then.

use std::{
    ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void},
    fs::{self, DirEntry},
    mem::MaybeUninit,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    ptr,
    sync::{Once, OnceLock},
};

use rdma_sys as ffi;

use super::ports::device::{Roots, inventory};

/// The name of the library, of the version that has all functions of this module.
const LIBRARY: &CStr = c"libibverbs.so.1";

/// Returns the reason why this host has no libibverbs, or none if it has been loaded.
pub(super) fn missing_library() -> Option<&'static str> {
    library().as_ref().err().map(String::as_str)
}

/// The library in this process, which keeps it to its end.
struct Library(*mut c_void);

// SAFETY: the handle is only given to dlsym(3), which any thread may call with it.
#[allow(unsafe_code)]
unsafe impl Send for Library {}

// SAFETY: as for `Send`: no call changes what the handle stands for.
#[allow(unsafe_code)]
unsafe impl Sync for Library {}

fn library() -> &'static Result<Library, String> {
    static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
    LOADED.get_or_init(|| load(LIBRARY))
}

#[allow(unsafe_code)]
fn load(name: &CStr) -> Result<Library, String> {
    // SAFETY: the name ends with zero. The initialisers of libibverbs set variables of its own, and those of a driver
    // enter it in the library's list.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(Library(handle));
    }
    // SAFETY: no argument. The text belongs to this thread until its next call of this family, and is copied before.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return Err(format!("{} cannot be loaded", name.to_string_lossy()));
    }
    // SAFETY: not null, so it is a text that ends with zero.
    let text = unsafe { CStr::from_ptr(text) };
    Err(text.to_string_lossy().into_owned())
}

/// Loads the drivers of this host's devices into the library, before its first list of devices.
///
/// For a device that none of the loaded drivers knows, the library loads all that there are, some 17. Where those of all
/// devices are loaded it loads no other, and the first list takes 1.3 ms in place of 5.4, or 70 ms in place of 400 in an
/// emulated guest.
fn load_drivers() {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        let Some(directory) = drivers_directory() else {
            return;
        };
        for driver in inventory().drivers(&Roots::default()) {
            load_driver(&directory, driver);
        }
    });
}

/// The configuration of libibverbs, with a file for each driver that it may load.
const CONFIGURATION: &str = "/etc/libibverbs.d";

/// Loads a driver of libibverbs, such as `mlx5`. If it cannot be loaded, the library loads all.
fn load_driver(directory: &Path, name: &str) {
    let is_allowed = Path::new(CONFIGURATION)
        .join(name)
        .with_extension("driver")
        .is_file();
    if !is_allowed {
        return;
    }
    // The number in the name is that of the interface between library and driver. A driver with another one needs
    // symbols that the library does not have, and is not loaded.
    let prefix = format!("lib{name}-rdmav");
    let file_name = |file: &DirEntry| file.file_name().into_vec();
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    for file in files.filter(|file| file_name(file).starts_with(prefix.as_bytes())) {
        let Ok(path) = CString::new(file.path().into_os_string().into_vec()) else {
            continue;
        };
        if let Err(error) = load(&path) {
            tracing::debug!("the driver {name} is not loaded: {error}");
        }
    }
}

/// Returns the directory of the drivers, which is beside the library.
#[allow(unsafe_code)]
fn drivers_directory() -> Option<PathBuf> {
    let function = find(c"ibv_get_device_list")?;
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `found` is memory for the answer.
    if unsafe { libc::dladdr(function, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: the call has written it, and pointers and zero were valid before. The name of the file ends with zero, and
    // belongs to the library, which stays loaded.
    let file = unsafe { CStr::from_ptr(found.assume_init().dli_fname) };
    let file = Path::new(OsStr::from_bytes(file.to_bytes()));
    Some(file.parent()?.join("libibverbs"))
}

/// Returns the address of a function of the library.
#[allow(unsafe_code)]
fn find(name: &CStr) -> Option<*mut c_void> {
    let Library(handle) = library().as_ref().ok()?;
    // SAFETY: the handle is open to the end of the process, and the name ends with zero.
    let found = unsafe { libc::dlsym(*handle, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Defines functions that call those of the same name in the library, some of them after the function behind `after`.
/// Without the library they return the value behind `else`: only the list of devices is asked for then, and it is empty
/// with an error.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $(after $first:ident,)? else $absent:expr;)*) => {
        $(
            // SAFETY: libibverbs has this name for a function of this type, in the header from which rdma-sys makes
            // its declaration. It is loaded with names of its own, and calls its own functions.
            #[allow(unsafe_code)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                type Function = unsafe extern "C" fn($($type),*) -> $result;
                static FOUND: OnceLock<Option<Function>> = OnceLock::new();
                $($first();)?
                let found = FOUND.get_or_init(|| {
                    let name = CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes());
                    let address = find(name.ok()?)?;
                    // SAFETY: the address is that of the function with this name, which has this type.
                    Some(unsafe { std::mem::transmute::<*mut c_void, Function>(address) })
                });
                match found {
                    // SAFETY: the caller keeps the promises of this function, which are those of the other.
                    Some(function) => unsafe { function($($argument),*) },
                    None => $absent,
                }
            }
        )*

        /// The types of the functions are those of rdma-sys: this does not compile with others.
        #[cfg(test)]
        #[allow(unsafe_code)]
        fn compare_types() {
            $(
                let _: [unsafe extern "C" fn($($type),*) -> $result; 2] = [$name, ffi::$name];
            )*
        }
    };
}

forward! {
    ibv_ack_async_event(event: *mut ffi::ibv_async_event) -> (), else ();
    ibv_ack_cq_events(queue: *mut ffi::ibv_cq, count: c_uint) -> (), else ();
    ibv_alloc_pd(context: *mut ffi::ibv_context) -> *mut ffi::ibv_pd, else ptr::null_mut();
    ibv_close_device(context: *mut ffi::ibv_context) -> c_int, else libc::ENOSYS;
    ibv_create_comp_channel(context: *mut ffi::ibv_context) -> *mut ffi::ibv_comp_channel, else ptr::null_mut();
    ibv_create_cq(
        context: *mut ffi::ibv_context,
        length: c_int,
        user: *mut c_void,
        channel: *mut ffi::ibv_comp_channel,
        vector: c_int
    ) -> *mut ffi::ibv_cq, else ptr::null_mut();
    ibv_create_qp(
        domain: *mut ffi::ibv_pd,
        attributes: *mut ffi::ibv_qp_init_attr
    ) -> *mut ffi::ibv_qp, else ptr::null_mut();
    ibv_dealloc_pd(domain: *mut ffi::ibv_pd) -> c_int, else libc::ENOSYS;
    ibv_dereg_mr(region: *mut ffi::ibv_mr) -> c_int, else libc::ENOSYS;
    ibv_destroy_comp_channel(channel: *mut ffi::ibv_comp_channel) -> c_int, else libc::ENOSYS;
    ibv_destroy_cq(queue: *mut ffi::ibv_cq) -> c_int, else libc::ENOSYS;
    ibv_destroy_qp(pair: *mut ffi::ibv_qp) -> c_int, else libc::ENOSYS;
    ibv_free_device_list(list: *mut *mut ffi::ibv_device) -> (), else ();
    ibv_get_async_event(
        context: *mut ffi::ibv_context,
        event: *mut ffi::ibv_async_event
    ) -> c_int, else -1;
    ibv_get_cq_event(
        channel: *mut ffi::ibv_comp_channel,
        queue: *mut *mut ffi::ibv_cq,
        user: *mut *mut c_void
    ) -> c_int, else -1;
    ibv_get_device_list(
        count: *mut c_int
    ) -> *mut *mut ffi::ibv_device, after load_drivers, else no_list();
    ibv_get_device_name(device: *mut ffi::ibv_device) -> *const c_char, else c"".as_ptr();
    ibv_modify_qp(
        pair: *mut ffi::ibv_qp,
        attributes: *mut ffi::ibv_qp_attr,
        mask: c_int
    ) -> c_int, else libc::ENOSYS;
    ibv_open_device(device: *mut ffi::ibv_device) -> *mut ffi::ibv_context, else ptr::null_mut();
    ibv_query_device(
        context: *mut ffi::ibv_context,
        attributes: *mut ffi::ibv_device_attr
    ) -> c_int, else libc::ENOSYS;
    ibv_query_gid(
        context: *mut ffi::ibv_context,
        port: u8,
        index: c_int,
        gid: *mut ffi::ibv_gid
    ) -> c_int, else -1;
    ibv_query_port(
        context: *mut ffi::ibv_context,
        port: u8,
        attributes: *mut ffi::_compat_ibv_port_attr
    ) -> c_int, else libc::ENOSYS;
    ibv_reg_mr(
        domain: *mut ffi::ibv_pd,
        start: *mut c_void,
        length: usize,
        access: c_int
    ) -> *mut ffi::ibv_mr, else ptr::null_mut();
    ibv_wc_status_str(status: ffi::ibv_wc_status::Type) -> *const c_char, else c"unknown".as_ptr();
}

/// Returns the list of devices of a host without the library: none, with the error of a kernel without RDMA.
#[allow(unsafe_code)]
fn no_list() -> *mut *mut ffi::ibv_device {
    // SAFETY: the call returns the place of this thread's number of the last error.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_library_that_is_missing_is_named() {
        let why = load(c"libibverbs-of-no-host.so.1").err().unwrap();
        assert!(why.contains("libibverbs-of-no-host.so.1"), "{why}");
    }

    #[test]
    fn every_function_is_in_the_library_of_this_machine() {
        compare_types();
        if let Some(why) = missing_library() {
            println!("SKIPPED: {why}");
            return;
        }
        assert!(find(c"ibv_open_device").is_some());
        assert!(find(c"ibv_no_such_function").is_none());
    }

    #[test]
    fn only_the_drivers_of_this_hosts_devices_are_loaded() {
        let inventory = inventory();
        let drivers: Vec<_> = inventory.drivers(&Roots::default()).collect();
        if drivers.is_empty() || drivers.len() < inventory.devices.len() {
            println!("SKIPPED: no device, or one whose driver libibverbs has to find");
            return;
        }
        super::super::verbs::device::load_drivers();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let driver = |line: &str| {
            let (_, file) = line.rsplit_once("/lib")?;
            Some(file.split_once("-rdmav")?.0.to_owned())
        };
        let loaded: BTreeSet<_> = maps.lines().filter_map(driver).collect();
        assert_eq!(loaded, drivers.into_iter().map(str::to_owned).collect());
    }
}
