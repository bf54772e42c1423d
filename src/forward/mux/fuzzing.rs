//! The entry point of the fuzz target of frames.

use super::{Mux, MuxEnd, MuxEvent, frame::FrameDecoder, window::BUDGET_BYTES};

/// Handles `data` as what a peer sends, in two parts, and answers each connection. The memory stays within the budget,
/// and all of it is free again after every connection was reset.
pub(crate) fn fuzz(data: &[u8]) {
    let (mut mux, mut decoder) = (Mux::new(MuxEnd::Odd), FrameDecoder::default());
    let mut room = vec![0; 4096];
    let mut flows: Vec<_> = mux.open(b"target".to_vec()).into_iter().collect();
    while mux.write_control(&mut room) > 0 {}
    for mut part in [&data[..data.len() / 2], &data[data.len() / 2..]] {
        while let Ok(Some(piece)) = decoder.next(&mut part) {
            let Ok(event) = mux.receive(piece) else {
                return;
            };
            match event {
                MuxEvent::Open(id, target) if target.is_empty() => mux.refuse(id, Vec::new()),
                MuxEvent::Open(id, _) => {
                    flows.push(id);
                    mux.accept(id);
                }
                MuxEvent::Data(id, bytes) => {
                    assert!(!bytes.is_empty());
                    mux.consume(id, bytes.len());
                }
                MuxEvent::Fin(id) => mux.finish(id),
                _ => {}
            }
            assert!(mux.free() <= BUDGET_BYTES);
            while mux.write_control(&mut room) > 0 {}
        }
    }
    for id in flows {
        mux.reset(id);
    }
    while mux.write_control(&mut room) > 0 {}
    assert_eq!((mux.count(), mux.free()), (0, BUDGET_BYTES));
}
