//! The near end of a tunnel, as one of the controller's own edges.

use std::sync::{Arc, Mutex, PoisonError};

use super::tunnel::{Tunnel, TunnelFault};
use crate::{
    Stream,
    ssh::local_edge::{EdgeFailure, LocalWork},
};

/// The near end of a tunnel.
pub(crate) struct NearEnd {
    /// The tunnel and what is called when connections can be made, until then.
    begin: Option<(Tunnel, OnConnected)>,
    fault: NearFault,
}

/// Called when connections can be made. The value that it returns is dropped when the tunnel ends.
pub(crate) type OnConnected = Box<dyn FnOnce(&Stream) -> Box<dyn Send> + Send>;

/// The fault of the near end of a tunnel: `EdgeFailure` carries only its text.
#[derive(Debug, Clone, Default)]
pub(crate) struct NearFault(Arc<Mutex<Option<TunnelFault>>>);

impl NearFault {
    /// Returns the fault, if there was one.
    pub(crate) fn take(&self) -> Option<TunnelFault> {
        let mut fault = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        fault.take()
    }

    fn set(&self, fault: TunnelFault) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }
}

impl NearEnd {
    /// Returns the near end of `tunnel`, and what will break there.
    pub(crate) fn new(tunnel: Tunnel, on_connected: OnConnected) -> (Self, NearFault) {
        let fault = NearFault::default();
        let end = Self {
            begin: Some((tunnel, on_connected)),
            fault: fault.clone(),
        };
        (end, fault)
    }
}

impl LocalWork for NearEnd {
    async fn carry(&mut self, stream: &mut Stream) -> Result<(), EdgeFailure> {
        let Some((tunnel, on_connected)) = self.begin.take() else {
            return Ok(());
        };
        let _while_connected = on_connected(stream);
        match tunnel.run(stream).await {
            Ok(()) => Ok(()),
            Err(TunnelFault::Stream(error)) => Err(EdgeFailure::Stream(error)),
            Err(fault) => {
                self.fault.set(fault.clone());
                Err(EdgeFailure::Local(fault.to_string()))
            }
        }
    }
}
