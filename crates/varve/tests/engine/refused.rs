//! Memory and threads that the system refuses are errors of the opening, which leaves nothing behind. One test, as what
//! it changes is the process's.

use std::sync::Arc;
use varve::{Db, Devices, Error, Layout, Options};
use varve_models::MemDevice;

#[test]
fn what_the_system_refuses_is_an_error() {
    let (data, log) = (MemDevice::new(0), MemDevice::new(0));
    let devices = || Devices::new(data.clone(), log.clone());
    let options = || Options { cache_bytes: 4 << 20, ..Options::default() };
    let alone = || assert_eq!((Arc::strong_count(&data), Arc::strong_count(&log)), (1, 1), "something was left behind");
    Db::create_on(devices(), &Layout::default(), options()).unwrap().close().unwrap();

    for cache_bytes in [1 << 42, 1 << 50, u64::MAX] {
        let opened = Db::open_on(devices(), Options { cache_bytes, ..options() });
        assert!(matches!(&opened, Err(Error::Resources(what)) if what.contains("smaller cache")), "{:?}", opened.err());
        alone();
    }

    let stack = varve_rt::stack_size();
    varve_rt::set_stack_size(1 << 46);
    let opened = Db::open_on(devices(), options());
    varve_rt::set_stack_size(stack);
    assert!(matches!(&opened, Err(Error::Resources(what)) if what.contains("thread")), "{:?}", opened.err());
    alone();

    let db = Db::open_on(devices(), options()).unwrap();
    let rows = db.create_keyspace("rows").unwrap();
    varve_rt::set_stack_size(1 << 46);
    let put = rows.put_from(b"long", &mut &[1; 1 << 20][..]);
    varve_rt::set_stack_size(stack);
    assert!(matches!(&put, Err(Error::Resources(_))), "{:?}", put.err());
    rows.put(b"short", b"value").unwrap();
    db.close().unwrap();
    drop((db, rows));
    alone();
}
