//! Tests of the forms of `-L`, `-R` and `-D`.

use std::{net::IpAddr, str};

use proptest::prelude::*;

use super::{
    parse::{MAX_PATH_BYTES, SpecError},
    *,
};

fn tcp(bind: BindAddress, port: u16) -> ListenAt {
    ListenAt::Tcp { bind, port }
}

fn unix(path: &str) -> ListenAt {
    ListenAt::Unix(path.into())
}

fn to(host: &str, port: u16) -> ForwardTarget {
    ForwardTarget::Tcp {
        host: host.to_owned(),
        port,
    }
}

fn address(text: &str) -> BindAddress {
    BindAddress::Address(text.parse().unwrap())
}

fn parsed(text: &str) -> ForwardSpec {
    ForwardSpec::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn fault(text: &str) -> String {
    match ForwardSpec::parse(text.as_bytes()) {
        Err(error) => error.to_string(),
        Ok(spec) => panic!("{text}: {spec:?}"),
    }
}

#[test]
fn the_forms_of_ssh_work() {
    let socket = ForwardTarget::Unix(b"/run/x".to_vec());
    for (text, listen, target) in [
        ("80:db:5432", tcp(BindAddress::Loopback, 80), to("db", 5432)),
        ("0:db:1", tcp(BindAddress::Loopback, 0), to("db", 1)),
        (
            "localhost:80:db:1",
            tcp(BindAddress::Loopback, 80),
            to("db", 1),
        ),
        ("*:80:db:1", tcp(BindAddress::All, 80), to("db", 1)),
        (":80:db:1", tcp(BindAddress::All, 80), to("db", 1)),
        (
            "10.0.0.1:80:10.0.0.2:1",
            tcp(address("10.0.0.1"), 80),
            to("10.0.0.2", 1),
        ),
        (
            "[::1]:80:[fd00::2]:1",
            tcp(address("::1"), 80),
            to("fd00::2", 1),
        ),
        (
            "80:[fe80::1%eth0]:1",
            tcp(BindAddress::Loopback, 80),
            to("fe80::1%eth0", 1),
        ),
        (
            "[fe80::1%eth0]:80:db:1",
            tcp(BindAddress::Name("fe80::1%eth0".to_owned()), 80),
            to("db", 1),
        ),
        (
            "h1:80:db:1",
            tcp(BindAddress::Name("h1".to_owned()), 80),
            to("db", 1),
        ),
        ("80:/run/x", tcp(BindAddress::Loopback, 80), socket.clone()),
        ("*:80:/run/x", tcp(BindAddress::All, 80), socket.clone()),
        ("[::1]:80:/run/x", tcp(address("::1"), 80), socket.clone()),
        ("/a:db:5432", unix("/a"), to("db", 5432)),
        ("./a:[::1]:5432", unix("./a"), to("::1", 5432)),
        ("/a:/run/x", unix("/a"), socket),
        (r"/a\:b\\c:db:1", unix(r"/a:b\c"), to("db", 1)),
        (r"/a\b:db:1", unix(r"/a\b"), to("db", 1)),
    ] {
        let expected = ForwardSpec { listen, target };
        assert_eq!(parsed(text), expected, "{text}");
        assert_eq!(parsed(&expected.to_string()), expected, "{expected}");
    }
}

#[test]
fn a_path_may_have_any_bytes() {
    let spec = ForwardSpec::parse(b"/\xff:/\xfe").unwrap();
    assert_eq!(spec.listen, ListenAt::Unix(b"/\xff".to_vec()));
    assert_eq!(spec.target, ForwardTarget::Unix(b"/\xfe".to_vec()));
}

#[test]
fn a_wrong_form_is_refused_with_the_right_one() {
    for (text, words) in [
        ("", "no port"),
        ("80", "no target after the port"),
        ("*:80", "no target after the port"),
        ("[::1]:80", "no target after the port"),
        ("/a", "no target after the port"),
        ("80:db", "give [BIND:]PORT:HOST:PORT"),
        ("db:80:1", "\"db\" is no port"),
        ("80:db:1:2:3", "give [BIND:]PORT:HOST:PORT"),
        ("::1:80:db:1", "give [BIND:]PORT:HOST:PORT"),
        ("80:db:0", "\"0\" is no port to connect to"),
        ("80:db:http", "from 1 to 65535"),
        ("65536:db:1", "from 0 to 65535"),
        ("+80:db:1", "\"+80\" is no port"),
        ("80::1", "\"\" is no host to connect to"),
        ("80:*:1", "\"*\" is no host to connect to"),
        ("80:me@db:1", "\"me@db\" is no host"),
        ("80:d b:1", "\"d b\" is no host"),
        ("80:-x:1", "\"-x\" is no host"),
        ("-x:80:db:1", "\"-x\" is no address to listen at"),
        ("/a:80:/b", "is no port to connect to"),
        ("/a:/b:80", "is no host to connect to"),
        ("80:/a:1", "is no host to connect to"),
        ("[db]:80:db:1", "brackets enclose an IPv6 address"),
        ("80:[::1:1", "brackets enclose an IPv6 address"),
        ("80:[::1]1:1", "brackets enclose an IPv6 address"),
        ("80:[::1%]:1", "brackets enclose an IPv6 address"),
        ("80:db:[::1]", "\"[::1]\" is no port to connect to"),
        ("80:/a\0", "zero byte"),
    ] {
        let error = fault(text);
        assert!(error.contains(words), "{text}: {error}");
    }
    let long = format!("80:/{}", "a".repeat(MAX_PATH_BYTES));
    assert!(fault(&long).contains("at most 107 bytes, and this one has 108"));
    assert!(ForwardSpec::parse(&long.as_bytes()[..long.len() - 1]).is_ok());
}

#[test]
fn a_dynamic_port_has_an_address_or_none() {
    let parsed = |text: &str| ListenAt::parse_dynamic(text.as_bytes());
    assert_eq!(parsed("1080"), Ok(tcp(BindAddress::Loopback, 1080)));
    assert_eq!(parsed("0"), Ok(tcp(BindAddress::Loopback, 0)));
    assert_eq!(parsed("*:1080"), Ok(tcp(BindAddress::All, 1080)));
    assert_eq!(parsed(":1080"), Ok(tcp(BindAddress::All, 1080)));
    assert_eq!(parsed("[::1]:1080"), Ok(tcp(address("::1"), 1080)));
    for text in ["1080:db:80", "/a", "h:/a", "a:b:c"] {
        assert_eq!(parsed(text), Err(SpecError::DynamicForm), "{text}");
    }
    for text in ["", "x", "h:x", "1:[::1]"] {
        assert!(parsed(text).is_err(), "{text}");
    }
}

fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9_][a-z0-9._-]{0,20}",
        any::<IpAddr>().prop_map(|address| address.to_string()),
    ]
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    "/[ -~é]{0,40}".prop_map(String::into_bytes)
}

fn listen_at() -> impl Strategy<Value = ListenAt> {
    let bind = prop_oneof![
        Just(BindAddress::Loopback),
        Just(BindAddress::All),
        any::<IpAddr>().prop_map(BindAddress::Address),
        "[a-z][a-k0-9-]{0,20}".prop_map(BindAddress::Name),
    ];
    prop_oneof![
        (bind, any::<u16>()).prop_map(|(bind, port)| ListenAt::Tcp { bind, port }),
        path().prop_map(ListenAt::Unix),
    ]
}

fn forward_target() -> impl Strategy<Value = ForwardTarget> {
    prop_oneof![
        (host(), 1..=u16::MAX).prop_map(|(host, port)| ForwardTarget::Tcp { host, port }),
        path().prop_map(ForwardTarget::Unix),
    ]
}

proptest! {
    #[test]
    fn every_spec_survives_its_text(listen in listen_at(), target in forward_target()) {
        let spec = ForwardSpec { listen: listen.clone(), target };
        let parsed = ForwardSpec::parse(spec.to_string().as_bytes());
        prop_assert_eq!(parsed.as_ref(), Ok(&spec), "{}", spec);
        if matches!(listen, ListenAt::Tcp { .. }) {
            prop_assert_eq!(ListenAt::parse_dynamic(listen.to_string().as_bytes()), Ok(listen));
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(bytes: Vec<u8>, text in r"[]\[:/\\*%a0-9. ]{0,30}") {
        let _ = ListenAt::parse_dynamic(&bytes);
        for text in [&bytes[..], text.as_bytes()] {
            if let Ok(spec) = ForwardSpec::parse(text) {
                let again = ForwardSpec::parse(spec.to_string().as_bytes());
                if str::from_utf8(text).is_ok() {
                    prop_assert_eq!(again, Ok(spec));
                }
            }
        }
    }
}
