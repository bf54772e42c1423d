//! Reads the extended attributes of entries, ACLs among them.

use std::{
    ffi::CStr,
    fmt::Write as _,
    os::fd::{AsFd, AsRawFd},
};

use rustix::{
    fs::{fgetxattr, flistxattr, getxattr, lgetxattr, listxattr, llistxattr},
    io::Errno,
};

/// An extended attribute: name and value.
pub(crate) type Attribute = (Vec<u8>, Vec<u8>);

/// The most bytes of an attribute's value, and of the list of names, on Linux.
const MAX_ATTRIBUTE_BYTES: usize = 64 << 10;

/// The bytes that suffice for the names of most files.
const USUAL_BYTES: usize = 256;

/// Reads the extended attributes of an open file.
///
/// # Errors
///
/// Those of flistxattr(2) and fgetxattr(2).
pub(crate) fn attributes_of(file: impl AsFd) -> Result<Vec<Attribute>, Errno> {
    let file = file.as_fd();
    attributes(
        |buffer| flistxattr(file, buffer),
        |name, buffer| fgetxattr(file, name, buffer),
    )
}

/// Reads the extended attributes of an entry that is not opened: a link, a FIFO, a socket or a device.
///
/// # Errors
///
/// Those of llistxattr(2) and lgetxattr(2).
pub(crate) fn attributes_at(folder: impl AsFd, name: &CStr) -> Result<Vec<Attribute>, Errno> {
    // Before Linux 6.13 there is no call that takes a folder and a name.
    let mut path = String::from("/proc/self/fd/");
    let _ = write!(path, "{}/", folder.as_fd().as_raw_fd());
    let mut path = path.into_bytes();
    path.extend_from_slice(name.to_bytes());
    attributes(
        |buffer| llistxattr(&path[..], buffer),
        |name, buffer| lgetxattr(&path[..], name, buffer),
    )
}

/// Reads the extended attributes of an entry that is open as a place only (`O_PATH`).
///
/// # Errors
///
/// Those of listxattr(2) and getxattr(2).
pub(crate) fn attributes_of_place(place: impl AsFd) -> Result<Vec<Attribute>, Errno> {
    let path = format!("/proc/self/fd/{}", place.as_fd().as_raw_fd());
    attributes(
        |buffer| listxattr(&path[..], buffer),
        |name, buffer| getxattr(&path[..], name, buffer),
    )
}

fn attributes(
    list: impl Fn(&mut [u8]) -> Result<usize, Errno>,
    get: impl Fn(&CStr, &mut [u8]) -> Result<usize, Errno>,
) -> Result<Vec<Attribute>, Errno> {
    let names = match growing(list) {
        Ok(names) if names.is_empty() => return Ok(Vec::new()),
        Ok(names) => names,
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut attributes = Vec::new();
    for name in names.split_inclusive(|&byte| byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        match growing(|buffer| get(name, buffer)) {
            Ok(value) => attributes.push((name.to_bytes().to_vec(), value)),
            // Removed meanwhile, or listed by a file system that has no value for it.
            Err(Errno::NODATA | Errno::NOTSUP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(attributes)
}

/// Calls with a small buffer, and with the largest if that is too small.
fn growing(call: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut usual = [0; USUAL_BYTES];
    match call(&mut usual) {
        Ok(count) => Ok(usual[..count].to_vec()),
        Err(Errno::RANGE) => {
            let mut buffer = vec![0; MAX_ATTRIBUTE_BYTES];
            let count = call(&mut buffer)?;
            buffer.truncate(count);
            Ok(buffer)
        }
        Err(error) => Err(error),
    }
}
