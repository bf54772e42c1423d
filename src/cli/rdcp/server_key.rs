//! The key of a client for the servers that its command line names.

use super::args::RdcpArgs;
use crate::{
    Key,
    cli::{args::Secret, keys::key_file::client_key, shared::message::Console},
    copy::supervised::CopyPlan,
    ssh::plan::StageHost,
};

/// Reads the key for servers from `--key-file` or, without it, from the environment. Returns none if no copy has a server.
///
/// # Errors
///
/// Fails if there is no key, or if it cannot be used.
pub(super) fn load(
    args: &RdcpArgs,
    variable: Option<&Secret>,
    plans: &[CopyPlan],
    console: &Console,
) -> anyhow::Result<Option<Key>> {
    let is_server = |place: &StageHost| matches!(place, StageHost::Server { .. });
    let places = plans.iter().flat_map(|plan| [&plan.from, &plan.to]);
    let Some(server) = places.into_iter().find(|place| is_server(place)) else {
        return Ok(None);
    };
    match (&args.key_file, variable) {
        (Some(path), _) => {
            let (key, warning) = client_key(path)?;
            if let Some(warning) = warning {
                console.warn(&warning);
            }
            Ok(Some(key))
        }
        (None, Some(text)) => Ok(Some(Key::parse(text.text().as_encoded_bytes())?)),
        (None, None) => anyhow::bail!(
            "the server on {server} needs a key; give --key-file FILE with the line of this client in the server's key file, or set RDPIPE_KEY"
        ),
    }
}
