"""Names that published attacks have called: what scanners look for, and what got past them."""

#: By what they are good for. None of them is special to zerocopy: what is not on its list is refused.
KNOWN_NAMES = {
    "runners of processes": """
        os.system os.popen os.execv os.spawnv os.posix_spawn os.fork posix.system posix.popen nt.system
        subprocess.Popen subprocess.run subprocess.call subprocess.check_output subprocess.getoutput
        pty.spawn asyncio.create_subprocess_shell asyncio.create_subprocess_exec
        _posixsubprocess.fork_exec multiprocessing.Process multiprocessing.util.spawnv_passfds
        concurrent.futures.ProcessPoolExecutor distutils.spawn.spawn webbrowser.open
        antigravity.webbrowser.open pip.main pip._internal.main ensurepip.bootstrap venv.create""",
    "runners of code": """
        builtins.eval builtins.exec builtins.compile code.interact code.InteractiveInterpreter.runsource
        codeop.compile_command runpy.run_path runpy.run_module runpy._run_code timeit.timeit timeit.main
        types.CodeType types.FunctionType sys.setprofile sys.settrace numexpr.evaluate sympy.sympify
        test.support.script_helper.assert_python_ok test.support.run_code _testcapi.run_in_subinterp
        numpy.testing._private.utils.runstring numpy.f2py.crackfortran.myeval
        numpy.f2py.crackfortran.getlincoef _xxsubinterpreters.run_string""",
    "importers": """
        builtins.__import__ importlib.import_module importlib._bootstrap._gcd_import importlib.reload
        importlib.machinery.SourceFileLoader imp.load_source imp.load_dynamic imp.find_module
        zipimport.zipimporter pkgutil.resolve_name pkgutil.get_data pydoc.locate pydoc.safeimport
        site.addsitedir ast.literal_eval lib2to3.pgen2.pgen.ParserGenerator
        lib2to3.pgen2.grammar.Grammar.loads venv.EnvBuilder.create""",
    "helpers of chains": """
        builtins.getattr builtins.setattr builtins.delattr builtins.vars builtins.globals builtins.map
        builtins.filter builtins.apply builtins.type builtins.object builtins.print builtins.input
        builtins.breakpoint functools.partial functools.reduce functools.partialmethod
        operator.attrgetter operator.methodcaller operator.itemgetter _operator.attrgetter
        itertools.starmap copyreg.add_extension copyreg.__newobj__ types.MethodType
        inspect.getattr_static""",
    "unpicklers": """
        pickle.loads pickle.load pickle.Unpickler _pickle.loads _pickle.Unpickler cPickle.loads
        marshal.loads shelve.open dill.loads dill.load cloudpickle.loads cloudpickle.load joblib.load
        joblib.numpy_pickle.load pandas.read_pickle pandas.io.pickle.read_pickle numpy.load yaml.load
        yaml.unsafe_load jsonpickle.decode dbm.dumb.open""",
    "functions of other picklers": """
        dill._dill._create_code dill._dill._import_module dill._dill._eval_repr
        cloudpickle.cloudpickle._make_skeleton_class cloudpickle.cloudpickle.subimport
        cloudpickle.cloudpickle._builtin_type numpy.core.multiarray._reconstruct
        numpy.core.multiarray.scalar joblib.numpy_pickle.NumpyArrayWrapper
        pandas.core.internals.managers.BlockManager sklearn.linear_model._base.LinearRegression
        copyreg._reconstructor copy_reg._reconstructor""",
    "openers of files": """
        builtins.open io.open _io.open io.FileIO _io.FileIO io.open_code codecs.open tokenize.open
        fileinput.input linecache.getlines mimetypes.init gzip.open bz2.open lzma.open tarfile.open
        zipfile.ZipFile pathlib.Path pathlib.Path.touch pathlib.Path.write_text shutil.rmtree
        shutil.copyfile shutil.unpack_archive os.remove os.rename os.mkdir os.open os.write
        tempfile.mkdtemp tempfile.mktemp logging.FileHandler logging.config.fileConfig sqlite3.connect""",
    "users of the network": """
        socket.socket socket.create_connection socket.gethostbyname urllib.request.urlopen
        urllib2.urlopen urllib.request.urlretrieve http.client.HTTPConnection http.server.HTTPServer
        ftplib.FTP smtplib.SMTP poplib.POP3 imaplib.IMAP4 nntplib.NNTP telnetlib.Telnet
        xmlrpc.client.ServerProxy ssl.get_server_certificate asyncio.open_connection requests.get
        requests.api.get httplib.HTTPSConnection aiohttp.client.request logging.config.listen
        wsgiref.simple_server.make_server""",
    "doors to native code": """
        ctypes.CDLL ctypes.cdll.LoadLibrary ctypes.string_at ctypes.memmove _ctypes.dlopen
        _ctypes.call_function ctypes.util.find_library cffi.FFI _cffi_backend.load_library mmap.mmap
        os.add_dll_directory readline.read_init_file numpy.ctypeslib.load_library _imp.create_dynamic""",
    "debuggers and profilers": """
        pdb.run pdb.set_trace bdb.Bdb.run cProfile.run cProfile.runctx profile.run profile.Profile.run
        trace.Trace.run trace.Trace.runctx doctest.debug_script doctest.testfile
        faulthandler.dump_traceback tracemalloc.start unittest.main unittest.mock._importer
        idlelib.run.Executive idlelib.pyshell.main idlelib.debugger.Idb
        idlelib.autocomplete.AutoComplete.get_entity idlelib.calltip.get_entity""",
    "hooks into the process": """
        gc.get_objects gc.set_debug weakref.finalize weakref.ref atexit.register signal.signal
        signal.setitimer threading.Thread threading.Timer _thread.start_new_thread sched.scheduler
        sys.exit sys.modules sys.addaudithook sys.setrecursionlimit os._exit os.kill os.putenv
        os.environ resource.setrlimit warnings.showwarning time.sleep contextlib.ExitStack
        _weakref.proxy""",
    "loaders of torch": """
        torch.load torch.serialization.load torch.serialization._load torch.hub.load
        torch.hub._load_local torch.hub.load_state_dict_from_url torch.jit.load
        torch.jit.unsupported_tensor_ops.execWrapper torch.jit._serialization.load
        torch.package.PackageImporter torch.package.package_importer.PackageImporter
        torch.ops.load_library torch._ops.ops.load_library torch.classes.load_library torch.export.load
        torch.storage._load_from_bytes torch.utils.cpp_extension.load
        torch.utils.cpp_extension.load_inline torch.utils.model_zoo.load_url
        torch.utils._config_module.load_config""",
    "workings of torch": """
        torch.from_file torch.as_strided torch.frombuffer torch.set_default_dtype
        torch.UntypedStorage.from_file torch.FloatStorage.from_file torch.serialization.add_safe_globals
        torch.serialization.register_package torch._utils._rebuild_device_tensor torch._dynamo.optimize
        torch._dynamo.guards.GuardBuilder.get torch._inductor.codecache.compile_file
        torch._inductor.codecache.load torch._inductor.codecache.PyCodeCache.load
        torch.fx.graph_module._forward_from_src torch.fx.graph_module.reduce_graph_module
        torch.fx.experimental.symbolic_shapes.ShapeEnv.evaluate_guards_expression
        torch.utils._import_utils._check_module_exists torch.utils.bottleneck.__main__.run_cprofile
        torch.utils.collect_env.run torch.utils.data.datapipes.utils.decoder.basichandlers
        torch.distributed.rpc.remote torch.distributed.rpc.internal._internal_rpc_pickler
        torch.distributed.nn.jit.instantiator.instantiate_scriptable_remote_module_template
        torch.multiprocessing.reductions.rebuild_storage_fd
        torch.multiprocessing.reductions.rebuild_tensor torch.cuda.memory._record_memory_history
        torch.nn.modules.module._addindent torch.testing._internal.common_utils.run_tests
        torch._C._jit_pass_inline torch._C.import_ir_module""",
    "loaders and scanners of checkpoints": """
        zerocopy.load zerocopy.loading.loader.load zerocopy.Unpickler zerocopy.loading.objects.user_globals.safe_globals
        zerocopy.patch zerocopy.patching.torch_load.load zerocopy._C.view safetensors.torch.load_file
        safetensors.safe_open picklescan.cli.main picklescan.scanner.scan_file_path modelscan.cli.cli
        fickling.fickle.Pickled.load transformers.AutoModel.from_pretrained h5py.File
        tensorflow.keras.models.load_model onnx.load keras.models.load_model""",
    "names of the program": """
        __main__.anything __main__.load __main__.__builtins__ __builtin__.eval __builtin__.file
        __builtin__.execfile __builtin__.reload __builtins__.eval exceptions.Exception
        commands.getoutput builtins.memoryview builtins.super builtins.staticmethod
        builtins.__build_class__ builtins.__loader__""",
}  # fmt: skip
