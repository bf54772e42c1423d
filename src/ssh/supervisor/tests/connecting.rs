//! From the first hello until every edge is connected.

use std::{net::IpAddr, time::Duration};

use super::{
    super::{Action, Event, Notice, Settings},
    OK, Rig, dialed, edge, killed, link, report, send, stage_report,
};
use crate::ssh::{
    local_edge::LocalEdgeEvent,
    plan::Addresses,
    protocol::{
        AgentHello, EdgeDirection, EdgeId, EdgeLink, EdgeOrder, FromAgent, Order, Payload, ToAgent,
    },
    stage::{FromStage, StageOrder},
};

#[test]
fn orders_say_which_end_listens_and_both_ends_of_an_edge_share_its_id_and_key() {
    use EdgeDirection::{Receive, Send};
    let mut rig = Rig::new(&["a:x", "b:y"], true);
    let mut order = |stage| match rig.hello(stage, "m9").remove(0) {
        Action::Send(at, ToAgent::Order(order)) if at == stage => order,
        other => panic!("{other:?}"),
    };
    let (first, second) = (order(0), order(1));
    let edges = |order: &Order| {
        let edge = |edge: &EdgeOrder| {
            let (peer, key) = (edge.peer.clone(), edge.key.clone());
            (edge.id, edge.direction, peer, key, edge.listens)
        };
        order.edges.iter().map(edge).collect::<Vec<_>>()
    };
    let expected = |index, direction, peer: &str, key: &str, listens| {
        let (peer, key) = (peer.to_owned(), key.to_owned());
        (edge(index), direction, peer, key, listens)
    };
    assert_eq!(
        edges(&first),
        [
            expected(0, Receive, "rdpipe", "key 0", true),
            expected(1, Send, "stage 2 (b)", "key 1", false)
        ]
    );
    assert_eq!(
        edges(&second),
        [
            expected(1, Receive, "stage 1 (a)", "key 1", true),
            expected(2, Send, "rdpipe", "key 2", true)
        ]
    );
    let stage = second.work.payload();
    let stage: StageOrder = stage.decode().unwrap();
    assert_eq!((stage.input, stage.output), (Some(edge(1)), Some(edge(2))));
    assert_eq!(second.name, "stage 2 (b)");
}

#[test]
fn a_sender_dials_once_both_agents_have_said_hello() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.hello(1, "m2");
    let port = 4711;
    let listening = FromAgent::Listening {
        edge: edge(1),
        port,
    };
    assert_eq!(rig.says(1, listening), []);
    let actions = rig.hello(0, "m1");
    assert_eq!(dialed(&actions), (vec!["10.0.0.1", "b"], 4711));
    let output = FromAgent::Listening {
        edge: edge(2),
        port: 5,
    };
    let actions = rig.says(1, output);
    assert_eq!(dialed(&actions), (vec!["10.0.0.1", "b"], 5));
    assert!(matches!(
        actions[0],
        Action::Dial {
            edge: EdgeId(2),
            ..
        }
    ));
}

#[test]
fn a_host_is_dialled_at_its_own_addresses_or_at_those_that_the_user_gave() {
    let order = |change: fn(&mut Settings), segments: &[&str], machine| {
        let mut rig = Rig::with(segments, false, change);
        rig.hello(0, "m1");
        rig.hello(1, machine);
        let edge = edge(1);
        let actions = rig.says(1, FromAgent::Listening { edge, port: 1 });
        let (addresses, _) = dialed(&actions);
        addresses.join(" ")
    };
    let nothing: fn(&mut Settings) = |_| {};
    let remote = ["a:x", "me@b:y"];
    assert_eq!(order(nothing, &remote, "m2"), "10.0.0.1 b");
    assert_eq!(order(nothing, &remote, "m1"), "127.0.0.1 10.0.0.1 b");
    assert_eq!(
        order(nothing, &["a:x", "10.0.0.1:y"], "m2"),
        "10.0.0.1",
        "each once"
    );
    let here: fn(&mut Settings) = |settings| settings.here = Some("me.net".to_owned());
    assert_eq!(order(here, &["a:x", ":y"], "m2"), "me.net 10.0.0.1");
    assert_eq!(order(nothing, &["a:x", ":y"], "m2"), "10.0.0.1");
    let given: fn(&mut Settings) = |settings| {
        settings.addresses = vec![Addresses::parse("b=192.168.0.7,::1").unwrap()];
    };
    assert_eq!(order(given, &remote, "m1"), "192.168.0.7 ::1");
}

#[test]
fn a_hostile_agent_cannot_make_other_hosts_connect_to_any_number_of_addresses() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.hello(0, "m1");
    let hello = |first: u8| {
        let own = [IpAddr::from([127, 0, 0, 1]), IpAddr::from([169, 254, 0, 1])];
        let many = (0..3000_u16).map(|number| {
            let [high, low] = number.to_be_bytes();
            IpAddr::from([first, 0, high, low])
        });
        FromAgent::Hello(AgentHello {
            host: "host1".to_owned(),
            machine: "m2".to_owned(),
            addresses: own.into_iter().chain(many).collect(),
        })
    };
    rig.says(1, hello(10));
    let edge = edge(1);
    let listening = |port| FromAgent::Listening { edge, port };
    let actions = rig.says(1, listening(1));
    let (addresses, _) = dialed(&actions);
    assert_eq!(addresses.len(), 17, "16 and the name of the host");
    assert_eq!((addresses[0], addresses[16]), ("10.0.0.0", "b"));
    // A second port, or a second list of addresses, connects to nothing more.
    assert_eq!(rig.says(1, listening(2)), []);
    let actions = rig.says(1, hello(11));
    assert_eq!(killed(&actions), [0, 1]);
    assert_eq!(rig.says(1, listening(3)), []);
}

#[test]
fn if_an_edge_cannot_be_dialled_in_one_direction_the_other_is_tried() {
    let mut rig = Rig::new(&["a:x", "b:y"], false);
    rig.hello(0, "m1");
    rig.hello(1, "m2");
    let edge = edge(1);
    rig.says(1, FromAgent::Listening { edge, port: 40001 });
    let tried = vec![("10.0.0.1".to_owned(), "no answer within 2s".to_owned())];
    let unreachable = FromAgent::Unreachable {
        edge,
        tried: tried.clone(),
    };
    let actions = rig.says(0, unreachable);
    assert_eq!(actions, [send(0, ToAgent::Listen { edge })]);
    let listening = FromAgent::Listening { edge, port: 40002 };
    let actions = rig.says(0, listening);
    assert!(matches!(
        actions[..],
        [Action::Send(
            1,
            ToAgent::Dial {
                edge: EdgeId(1),
                port: 40002,
                ..
            }
        )]
    ));
    let actions = rig.says(1, FromAgent::Unreachable { edge, tried });
    assert_eq!(killed(&actions), [0, 1]);
    let text = rig.machine.summary().outcome.causes[0].fault.text.clone();
    for part in [
        "stage 1 (a) and stage 2 (b)",
        "from a to b, port 40001: 10.0.0.1: no answer",
        "from b to a, port 40002",
        "-p PORT-PORT",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(rig.exit(), 255);
}

#[test]
fn a_fallback_to_tcp_is_reported_once_for_an_edge() {
    let mut rig = Rig::new(&["a:x"], false);
    rig.hello(0, "m1");
    let link = EdgeLink {
        is_fallback: true,
        ..link()
    };
    let edge = edge(1);
    let connected = FromAgent::Connected {
        edge,
        link: link.clone(),
    };
    let told = rig.says(0, connected);
    assert!(
        matches!(told[..], [Action::Notify(Notice::Note(_))]),
        "{told:?}"
    );
    let told = rig.local(edge, LocalEdgeEvent::Connected(link));
    assert!(
        !told
            .iter()
            .any(|action| matches!(action, Action::Notify(_)))
    );
}

/// Agents send any messages in any order, and the machine still ends the pipeline without a panic.
#[test]
fn any_messages_in_any_order_end_the_pipeline_without_a_panic() {
    let events = |stage: usize| {
        let about = |edge| {
            [
                FromAgent::Listening { edge, port: 1 },
                FromAgent::Unreachable {
                    edge,
                    tried: vec![],
                },
                FromAgent::Connected { edge, link: link() },
            ]
        };
        // The two edges of the stage, one of another stage, and one that does not exist.
        let mut all: Vec<_> = [0, 1, 2, u32::MAX].map(EdgeId).map(about).concat();
        let messages = [FromStage::InputComplete, FromStage::Ended(OK)];
        let messages = messages.map(|message| Payload::encode(&message).unwrap());
        all.extend(messages.map(FromAgent::Application));
        all.push(FromAgent::Pong);
        all.push(report(&stage_report(OK)));
        all.into_iter().map(move |message| (stage, message))
    };
    for skip in 0..20 {
        let mut rig = Rig::new(&["a:x", "b:< f"], false);
        let all: Vec<_> = events(1).chain(events(0)).collect();
        for (stage, message) in all.iter().cycle().skip(skip).take(all.len()) {
            rig.says(*stage, message.clone());
        }
        rig.closed(0);
        rig.closed(1);
        rig.now = Duration::from_secs(60);
        rig.event(Event::Tick);
        rig.now = Duration::from_secs(62);
        rig.event(Event::Tick);
        assert!(rig.actions.contains(&Action::Done), "{:?}", rig.actions);
    }
}

#[test]
fn messages_about_the_edges_of_another_agent_are_ignored() {
    let mut rig = Rig::new(&["a:x", "b:y", "c:z"], false);
    for stage in 0..3 {
        rig.hello(stage, &format!("m{stage}"));
    }
    let (stranger, port) = (edge(3), 9);
    let listening = FromAgent::Listening {
        edge: stranger,
        port,
    };
    assert_eq!(rig.says(0, listening.clone()), []);
    assert_eq!(dialed(&rig.says(2, listening)).1, port);
}
