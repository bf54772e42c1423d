//! A macro that makes tests over one data path of promises that hold over every one.

/// Makes a test over `DataPath::$path` of every `noun::promise`, where `noun` is a module beside the one that uses the
/// macro.
macro_rules! promises {
    (over $path:ident: $($noun:ident::$promise:ident),* $(,)?) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $promise() -> anyhow::Result<()> {
            let over = crate::support::data_path::DataPath::$path;
            if let Some(why) = over.missing() {
                crate::support::skip(&why);
                return Ok(());
            }
            let body = super::$noun::$promise(over, rdpipe::StreamConfig::default());
            crate::support::waiting::within(crate::support::waiting::generous(), stringify!($promise), body).await
        }
    )* };
}
