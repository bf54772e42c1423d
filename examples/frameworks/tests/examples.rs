//! The examples as processes, over each data path.

use crate::support::programs::examples::Over;

mod tcp {
    use super::Over;

    const TCP: Over = Over("tcp");

    #[test]
    fn an_http_body_is_streamed() {
        TCP.a_body_is_streamed(1 << 30);
    }

    #[test]
    fn a_body_of_axum_is_streamed() {
        TCP.a_body_of_axum_is_streamed(256 << 20);
    }

    #[test]
    fn messages_of_grpc_are_echoed() {
        TCP.messages_of_grpc_are_echoed(100);
    }

    #[test]
    fn a_file_is_sent_through_tls() {
        TCP.a_file_goes_through_tls();
    }

    #[test]
    fn another_certificate_is_not_trusted() {
        TCP.another_certificate_is_not_trusted();
    }
}

#[cfg(feature = "rdma")]
mod rdma {
    use super::Over;
    use crate::support::{is_full, programs::machine};

    const RDMA: Over = Over("rdma");

    #[test]
    fn an_http_body_is_streamed() {
        let Some(_machine) = machine() else { return };
        // The whole gibibyte takes minutes on an emulated processor.
        RDMA.a_body_is_streamed(if is_full() { 1 << 30 } else { 32 << 20 });
    }

    #[test]
    fn a_body_of_axum_is_streamed() {
        let Some(_machine) = machine() else { return };
        RDMA.a_body_of_axum_is_streamed(16 << 20);
    }

    #[test]
    fn messages_of_grpc_are_echoed() {
        let Some(_machine) = machine() else { return };
        RDMA.messages_of_grpc_are_echoed(10);
    }

    #[test]
    fn a_file_is_sent_through_tls() {
        let Some(_machine) = machine() else { return };
        RDMA.a_file_goes_through_tls();
    }

    #[test]
    fn another_certificate_is_not_trusted() {
        let Some(_machine) = machine() else { return };
        RDMA.another_certificate_is_not_trusted();
    }
}
