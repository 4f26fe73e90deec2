# Copyright Spack Project Developers. See COPYRIGHT file for details.
#
# SPDX-License-Identifier: (Apache-2.0 OR MIT)
#
# For Spack 1.0 and newer. docs/install.md has the steps.

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Fsdp(CMakePackage, CudaPackage):
    """Fully sharded data parallel training of language models on MPI clusters."""

    homepage = "https://fsdp.invalid"
    git = "https://fsdp.invalid/fsdp.git"

    license("Apache-2.0", checked_by="fsdp developers")

    version("main", branch="main")

    variant("nccl", default=True, when="+cuda", description="GPUs exchange data by NCCL")

    depends_on("c", type="build")  # FindHDF5 of CMake
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("gawk", type="build")  # the man pages

    depends_on("mpi@3.1:", type=("build", "link", "run"))
    depends_on("hdf5@1.10: ~mpi", type=("build", "link"))
    depends_on("onednn@2:", when="target=x86_64:", type=("build", "link"))
    depends_on("openblas@0.3: threads=pthreads", when="target=aarch64:", type=("build", "link"))
    depends_on("boost@1.74: +program_options", type=("build", "link"))
    depends_on("boost@1.74: +test", type=("build", "test"))
    depends_on("fmt@9:", type=("build", "link"))
    depends_on("nlohmann-json@3.11:", type="build")
    depends_on("xxhash@0.8:", type=("build", "link"))
    depends_on("icu4c@60:", type=("build", "link"))
    depends_on("pcre2@10.32:", type=("build", "link"))
    depends_on("zlib-api", type=("build", "link"))
    depends_on("zstd", type=("build", "link"))
    depends_on("sentencepiece@0.1.97:", type=("build", "test"))
    depends_on("cuda@12:", when="+cuda", type=("build", "link", "run"))
    depends_on("nccl@2.22:", when="+nccl", type=("build", "link", "run"))

    requires(
        "target=x86_64:",
        "target=aarch64:",
        policy="any_of",
        msg="the kernels are written for x86-64 and aarch64",
    )
    conflicts("%gcc@:10", msg="C++20 needs g++ 11 or newer")
    conflicts("%clang@:15", msg="C++20 needs clang 16 or newer")
    conflicts(
        "cuda_arch=none", when="+cuda", msg="choose a GPU, such as cuda_arch=90 for the H100"
    )
    for arch in CudaPackage.cuda_arch_values:
        if int(arch.rstrip("af")) < 80:
            conflicts(f"cuda_arch={arch}", msg="GPUs need compute capability 8.0 or newer")

    generator("ninja")

    sanity_check_is_file = [
        "bin/fsdp-train",
        "bin/fsdp-doctor",
        "include/fsdp/fsdp.hpp",
        "share/man/man1/fsdp-train.1",
    ]

    def cmake_args(self):
        args = [
            self.define("FSDP_WITH_CUDA", self.spec.satisfies("+cuda")),
            self.define("FSDP_WITH_NCCL", self.spec.satisfies("+nccl")),
            self.define("FSDP_WITH_CUDNN", False),  # Spack has no package of its frontend
            self.define("FSDP_WITH_TESTS", self.run_tests),
            self.define("FSDP_UNITY_BUILD", True),
            self.define("MPI_CXX_COMPILER", self.spec["mpi"].mpicxx),
            self.define("CMAKE_INSTALL_LIBDIR", "lib"),
        ]
        if self.spec.satisfies("+cuda"):
            args.append(
                self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value)
            )
        if self.spec.satisfies("+nccl"):
            args.append(self.define("NCCL_INCLUDE_DIR", self.spec["nccl"].prefix.include))
            args.append(self.define("NCCL_LIBRARY", self.spec["nccl"].libs[0]))
        return args

    def setup_run_environment(self, env):
        env.set("FSDP_BIN", self.prefix.bin)
        env.set("FSDP_SHARE", self.prefix.share.fsdp)
        env.set("FSDP_JOB", join_path(self.prefix.share.fsdp, "slurm", "job.sh"))

    def test_version(self):
        """each program starts and finds its libraries"""
        for program in ("fsdp-train", "fsdp-plan", "fsdp-tokenize", "fsdp-data", "fsdp-inspect"):
            with test_part(self, f"test_version_{program}", purpose=f"{program} --version"):
                out = which(join_path(self.prefix.bin, program), required=True)(
                    "--version", output=str.split, error=str.split
                )
                assert f"{program} " in out

    def test_own_layer(self):
        """a program with a layer of its own finds the installation, and is right on 2 ranks"""
        source = join_path(self.prefix.share.doc.fsdp.docs, "examples", "own-layer")
        cmake = which(self.spec["cmake"].prefix.bin.cmake, required=True)
        cmake(
            "-S",
            source,
            "-B",
            "own-layer",
            f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCMAKE_CXX_COMPILER={self['cxx'].cxx}",
        )
        cmake("--build", "own-layer")
        mpiexec = which(self.spec["mpi"].prefix.bin.mpiexec, required=True)
        out = mpiexec(
            "-n", "2", "own-layer/own-layer", "FULL_SHARD", output=str.split, error=str.split
        )
        assert "gradients right" in out
